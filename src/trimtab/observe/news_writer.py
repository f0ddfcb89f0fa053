"""NewsWriter: observer.jsonl, written by the one observer that holds the lease of a run."""

import os

from trimtab.core.block import Event
from trimtab.journal import RunDirectory
from trimtab.journal.files import JournalLock, open_regular, read_regular
from trimtab.journal.news import MAX_BYTES, OBSERVER_FILE, encode_news

LEASE = "observer.lock"


class NewsWriter:
    """Appends lines that the file does not have yet. Holds the lease from construction to close."""

    def __init__(self, run: RunDirectory) -> None:
        """Take the lease; raises JournalError if a different observer holds it, OSError."""
        self._path = run.home / OBSERVER_FILE
        self._lease = JournalLock(run.home / LEASE)
        try:
            self._known = self._read()
        except BaseException:
            self.close()
            raise

    def say(self, event: Event) -> bool:
        """Write the line of an event; return whether it is new."""
        line = encode_news(event)
        if line in self._known:
            return False
        with open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            file.write(line.encode() + b"\n")
        self._known.add(line)
        return True

    def close(self) -> None:
        """Give the lease back."""
        self._lease.release()

    def _read(self) -> set[str]:
        """Return the lines of an earlier observer; a last one that it did not complete is cut."""
        try:
            data = read_regular(self._path, MAX_BYTES)
        except FileNotFoundError:
            return set()
        whole, _, torn = data.rpartition(b"\n")
        if torn:
            with open_regular(self._path, os.O_RDWR) as file:
                file.truncate(len(whole) + 1 if whole else 0)
        return set(whole.decode("utf-8", "replace").split("\n"))


class NoNews:
    """A second observer of a run: it judges for whoever asked, and writes nothing."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def say(self, event: Event) -> bool:
        """Return whether the event was not said before."""
        line = encode_news(event)
        is_new = line not in self._known
        self._known.add(line)
        return is_new

    def close(self) -> None:
        """Hold nothing."""
