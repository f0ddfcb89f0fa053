"""trackio: a run of its own; incidents are its alerts.

trackio keeps every row that it gets, so the batch that a killed shipper had not confirmed may be
there twice; `trimtab/tick` distinguishes such rows.
"""

import os
import time
from typing import Any

from trimtab.core.block import Block
from trimtab.core.errors import MissingExtra
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.incident_news import IncidentNews
from trimtab.integrations.sinks.rows import PREFIX, tracker_rows

FLUSH_SECONDS = 0.6
"""trackio writes to its database every 0.5 s; a position that is saved earlier would lose the batch
of a shipper that is killed then."""


class TrackioSink:
    """Logs into the project of `TRACKIO_PROJECT`, or into the project `trimtab`."""

    name = "trackio"
    needs_everything = False

    def __init__(self) -> None:
        try:
            import trackio
        except ImportError as error:
            raise MissingExtra.of("the trackio sink needs trackio", "trackio") from error
        self._trackio: Any = trackio
        self._trackio_run: Any = None

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Start the run, or continue it."""
        self._trackio_run = self._trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "trimtab"),
            name=run.name,
            resume="allow",
            config={k: v for k, v in run.manifest.items() if isinstance(v, str | int | float)},
            embed=False,
            auto_log_gpu=False,  # they are about the shipper
            auto_log_cpu=False,
        )

    def send(self, block: Block) -> None:
        """Log the records and the alerts, and wait until they are written."""
        for row in tracker_rows(block):
            self._trackio_run.log({**row.values, f"{PREFIX}tick": row.tick}, step=row.step)
        for event in block.events:
            news = IncidentNews.from_event(event)
            if news is not None and news.is_alarm and not news.is_over:
                self._trackio_run.alert(
                    title=f"incident {news.number}: {news.what}",
                    text=f"{news.describe()}\n{news.action}".strip(),
                    level=self._trackio.AlertLevel.ERROR,
                    step=news.step,
                )
        time.sleep(FLUSH_SECONDS)

    def poll(self) -> None:
        """Do nothing: nothing is due by the clock."""

    def finish(self, status: RunStatus) -> None:
        """Do nothing: nothing belongs to the end."""

    def close(self) -> None:
        """End the run: everything is in its database when this returns."""
        if self._trackio_run is not None:
            self._trackio_run.finish()
