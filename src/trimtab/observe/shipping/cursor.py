"""Cursor: the position of one sink, on disk. What it does not cover is sent again."""

import json
from pathlib import Path
from typing import Any

from trimtab.core.block import Block
from trimtab.core.errors import JournalError
from trimtab.core.sink import SinkMemory, parse_status
from trimtab.journal import RunDirectory
from trimtab.journal.files import JournalLock, read_json, replace_file

SCHEMA = 1


def ship_folder(run: RunDirectory) -> Path:
    """Return the folder of the positions and of ship.log; raises JournalError if it is a link."""
    try:
        return run.folder("ship")
    except OSError as error:
        raise JournalError(f"nothing can be sent from {run.root}: {error}") from error


class Cursor:
    """The position of one sink, and what the sink remembers."""

    def __init__(self, run: RunDirectory, sink: str) -> None:
        """Read the position; the first record if there is no file that can be read."""
        self._path = ship_folder(run) / f"{sink}.json"
        saved = _read(self._path)
        self.next_tick = _count(saved.get("next_tick"))
        """The tick after the last record that was sent."""
        self.num_events = _count(saved.get("num_events"))
        """Events at or after `next_tick` that were sent already: they come before a record."""
        self.num_news = _count(saved.get("num_news"))
        """What the observer said, as far as it was sent: it comes after the records that it is
        about."""
        self.num_records = _count(saved.get("num_records"))
        self.num_refused = _count(saved.get("num_refused"))
        """Records sent, and points refused, so far."""
        self.status = parse_status(saved.get("status"))
        """The status that the sink knows."""
        values = saved.get("memory")
        self.memory = SinkMemory(values=values if isinstance(values, dict) else {}, save=self.save)

    def advance(self, sent: Block, num_news: int) -> None:
        """Move past records and events that were sent; the last `num_news` events are news."""
        events = sent.events[: len(sent.events) - num_news]
        self.num_news += num_news
        if len(sent):
            self.next_tick = int(sent.tick[-1]) + 1
            self.num_events = sum(event.tick >= self.next_tick for event in events)
            self.num_records += len(sent)
        else:
            self.num_events += len(events)

    def save(self) -> None:
        """Write the position; on disk when this returns."""
        values = {
            "schema": SCHEMA,
            "next_tick": self.next_tick,
            "num_events": self.num_events,
            "num_news": self.num_news,
            "num_records": self.num_records,
            "num_refused": self.num_refused,
            "status": self.status.value,
            "memory": self.memory.values,
        }
        replace_file(self._path, json.dumps(values) + "\n")


def lock_sink(run: RunDirectory, sink: str) -> JournalLock:
    """Lock a sink of a run; raises JournalError if a different process ships to it now."""
    folder = ship_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    problem = f"{run.root} is being sent to {sink} by a different process; wait for it to end"
    return JournalLock(folder / f"{sink}.lock", problem)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except (OSError, ValueError):
        return {}
    return values if values.get("schema") == SCHEMA else {}


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
