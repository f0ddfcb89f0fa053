"""TensorBoard: one folder per attempt, so a spike that was rolled back stays visible beside its
repetition.

Exactly once: the length of each file is saved with the position, and what a killed shipper wrote
beyond it is cut off.
"""

import os
from pathlib import Path

from trimtab.core.block import Block, Event
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.incident_news import IncidentNews
from trimtab.integrations.sinks.event_file import scalars_event, text_event, version_event
from trimtab.integrations.sinks.rows import PREFIX, tracker_rows
from trimtab.report.escaping import escape_markdown

VARIABLE = "TRIMTAB_TENSORBOARD_DIR"
"""The log directory; `trimtab/tensorboard` in the run directory by default."""


class TensorBoardSink:
    """Writes event files."""

    name = "tensorboard"
    needs_everything = False

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Find the folder, and cut off what was not saved."""
        given = os.environ.get(VARIABLE)
        self._folder = Path(given) / run.name if given else run.home / "tensorboard"
        self._run, self._memory = run, memory
        self._sizes: dict[str, int] = memory.values.setdefault("sizes", {})
        self._clock = 0.0
        self._attempt = int(memory.values.get("attempt", 0))
        for name, size in self._sizes.items():
            path = self._folder / name
            if path.exists() and path.stat().st_size > size:
                os.truncate(path, size)

    def send(self, block: Block) -> None:
        """Append the records to the files of their attempts."""
        parts: dict[int, list[bytes]] = {}
        for row in tracker_rows(block):
            scalars = scalars_event(row.step, row.clock, row.values)
            parts.setdefault(row.attempt, []).append(scalars)
            self._clock, self._attempt = row.clock, row.attempt
        for event in block.events:
            if (text := self._text(event)) is not None:
                parts.setdefault(self._attempt, []).append(text)
        for attempt, events in parts.items():
            self._append(attempt, b"".join(events))
        self._memory.values["attempt"] = self._attempt

    def poll(self) -> None:
        """Nothing is due by the clock."""

    def finish(self, status: RunStatus) -> None:
        """Add the post-mortems to the text tab."""
        for path in sorted(self._run.home.glob("incidents/*/postmortem.md")):
            text = path.read_text(encoding="utf-8", errors="replace")
            name = f"{PREFIX}postmortem/{path.parent.name}"
            self._append(self._attempt, text_event(0, self._clock, name, text))

    def close(self) -> None:
        """Nothing stays open."""

    def _append(self, attempt: int, data: bytes) -> None:
        """Append to the file of an attempt; the same bytes at the same place if sent again."""
        # TensorBoard takes the newest file of a folder for the live one, so there is only one.
        name = f"trimtab/attempt-{attempt}/events.out.tfevents.trimtab"
        path = self._folder / name
        size = self._sizes.get(name, 0)
        if size == 0:
            data = version_event(self._clock) + data
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(size)
            file.truncate()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._sizes[name] = size + len(data)

    def _text(self, event: Event) -> bytes | None:
        news = IncidentNews.from_event(event)
        if news is None:
            return None
        changed = news.transition.value if news.transition else "changed"
        text = f"{changed}: {escape_markdown(news.describe())}"
        name = f"{PREFIX}incident/{news.number:04d}"
        return text_event(event.step, self._clock, name, text)
