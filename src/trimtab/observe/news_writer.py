"""NewsWriter: observer.jsonl, written by the one observer that holds the lease of a run."""

import os
from collections.abc import Mapping
from typing import Any

from trimtab.core.block import Event
from trimtab.core.sink import RUN_STATUS
from trimtab.journal import RunDirectory
from trimtab.journal.files import JournalLock, open_regular, read_regular
from trimtab.journal.news import INCIDENT, MAX_BYTES, OBSERVER_FILE, encode_news, read_news

LEASE = "observer.lock"


class NoNews:
    """What an observer without the lease says: it judges for whoever asked, and writes nothing."""

    def __init__(self) -> None:
        self._incidents: set[str] = set()
        self.facts: dict[int, Mapping[str, Any]] = {}
        """What was said last about each incident, by its number."""
        self._latest: dict[str, str] = {}
        """The last line of each other kind: a run may stall and go on any number of times."""
        self.status = "running"
        """The status of the run that was said last."""

    def say(self, event: Event) -> bool:
        """Return whether the event was not said before."""
        line = encode_news(event)
        if event.kind == INCIDENT:
            is_new = line not in self._incidents
            self._incidents.add(line)
            if is_new and not event.facts.get("dismissed"):
                self.facts[event.facts.get("number", 0)] = event.facts
            return is_new
        is_new = self._latest.get(event.kind) != line
        if is_new and event.kind == RUN_STATUS:
            self._latest.clear()  # what is said of a run that is over is said of this end
            self.status = str(event.facts.get("status"))
        self._latest[event.kind] = line
        return is_new

    def close(self) -> None:
        """Hold nothing."""


class NewsWriter(NoNews):
    """Appends lines that the file does not have yet. Holds the lease from construction to close."""

    def __init__(self, run: RunDirectory) -> None:
        """Take the lease; raises JournalError if a different observer holds it, OSError."""
        super().__init__()
        self._path = run.home / OBSERVER_FILE
        self._lease = JournalLock(run.home / LEASE)
        try:
            self._cut_torn_line()
            for event in read_news(run):
                super().say(event)
        except BaseException:
            self.close()
            raise

    def say(self, event: Event) -> bool:
        """Write the line of an event; return whether it is new."""
        is_new = super().say(event)
        if is_new:
            with open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
                file.write(encode_news(event).encode() + b"\n")
        return is_new

    def close(self) -> None:
        self._lease.release()

    def _cut_torn_line(self) -> None:
        """Remove a last line that an earlier observer did not complete."""
        try:
            data = read_regular(self._path, MAX_BYTES)
        except FileNotFoundError:
            return
        if not data.endswith(b"\n"):
            with open_regular(self._path, os.O_RDWR) as file:
                file.truncate(data.rfind(b"\n") + 1)
