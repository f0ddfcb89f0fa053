"""W&B: a run of its own, beside yours.

Never metrics in your run: a second writer without `step=` makes W&B drop the points that you log
with it (6 of 6 measured). Here `step` is the tick, which never goes back, and `trimtab/step` is the
axis. A resend has a step that W&B has already, and is ignored.
"""

import os
import uuid
from typing import Any

from trimtab.core.block import Block
from trimtab.core.errors import MissingExtra
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.incident_news import IncidentNews
from trimtab.integrations.sinks.rows import PREFIX, tracker_rows

STEP = f"{PREFIX}step"
_EXIT_CODES = {RunStatus.ENDED: 0, RunStatus.DIED: 1}


class WandbSink:
    """Logs into a run with the job type `trimtab`, grouped with yours by `WANDB_RUN_GROUP`.

    Project, entity, mode and key are those of W&B's own environment variables.
    """

    name = "wandb"
    needs_everything = False

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra.of("the W&B sink needs wandb", "wandb") from error
        self._wandb: Any = wandb
        self._wandb_run: Any = None
        self._status = RunStatus.RUNNING

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Start the run, or continue it."""
        if "run_id" not in memory.values:
            memory.values["run_id"] = uuid.uuid4().hex[:12]
            memory.save()
        self._memory = memory
        own_id = os.environ.pop("WANDB_RUN_ID", None)  # that of your run, not of this one
        manifest = {name: v for name, v in run.manifest.items() if name != "config"}
        self._wandb_run = self._wandb.init(
            id=memory.values["run_id"],
            name=f"{run.name} (trimtab)",
            group=os.environ.get("WANDB_RUN_GROUP") or own_id or run.name,
            job_type="trimtab",
            dir=str(run.home / "ship"),
            resume="allow",
            config={"trimtab": manifest},
            # No metrics of this machine, no capture of output: both are about the shipper.
            settings=self._wandb.Settings(console="off", x_disable_stats=True, silent=True),
        )
        self._wandb_run.define_metric(STEP)
        self._wandb_run.define_metric(f"{PREFIX}*", step_metric=STEP)
        memory.values["link"] = str(self._wandb_run.url or "")

    def send(self, block: Block) -> None:
        """Log the records; incidents are alerts and a summary of this run."""
        for row in tracker_rows(block):
            self._wandb_run.log({**row.values, STEP: row.step}, step=row.tick)
        for event in block.events:
            if (news := IncidentNews.from_event(event)) is not None:
                self._wandb_run.summary[f"{PREFIX}incident/{news.number:04d}"] = news.describe()
                self._wandb_run.summary[f"{PREFIX}incidents"] = news.number

    def poll(self) -> None:
        """Do nothing: nothing is due by the clock."""

    def finish(self, status: RunStatus) -> None:
        """Store the status; the run ends with the sink."""
        self._status = status
        self._wandb_run.summary[f"{PREFIX}status"] = status.value

    def close(self) -> None:
        if self._wandb_run is not None:
            self._wandb_run.finish(exit_code=_EXIT_CODES.get(self._status, 0))
