"""Liveness: whether a run is alive, stalled, died or ended.

The journal's lock is not tried for this: to hold it for a moment would make a writer that starts at
that moment fail.
"""

import contextlib
import os
import re
import select
import socket
import threading
import time
from collections.abc import Collection
from pathlib import Path

from trimtab.core.sink import GUARD_CLOSED, RunStatus
from trimtab.integrations.shipper.feed import Feed
from trimtab.journal import RunDirectory
from trimtab.journal.directory import incident_folders
from trimtab.journal.files import read_regular


class Owner:
    """The training process that started this shipper: a pipe from it, and its process id.

    The pipe ends with the process. A data loader worker may keep it open for longer, so the parent
    of this process is checked as well.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._parent = os.getppid()
        self._said = b""
        self._lock = threading.Lock()
        self._is_gone = False

    def is_gone(self) -> bool:
        """Return whether it has closed its guard, or is no more."""
        with self._lock:  # the threads of all sinks ask
            while not self._is_gone and select.select([self._pipe], [], [], 0)[0]:
                data = os.read(self._pipe, 64)
                self._said += data
                self._is_gone = not data
            if os.getppid() != self._parent:
                self._is_gone = True
            return self._is_gone

    def has_ended(self, how: str | None, *, was_gone: bool) -> bool:
        """Return whether the run has ended; an end in the journal may be of an earlier launch."""
        return was_gone and (how is not None or GUARD_CLOSED in self._said)

    def is_writing(self, incidents: Collection[int]) -> bool:
        """Return whether it may still write post-mortems: it is gone only after them."""
        return not self.is_gone()


class WriterProcess:
    """The process that writes the journal, by the name that it left in the lock file.

    For a shipper that a person starts. On a different host nothing is known about it.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def is_gone(self) -> bool:
        """Return whether it ran on this host and is no more."""
        with contextlib.suppress(OSError):
            text = read_regular(self._run.home / "journal.lock").decode("utf-8", "replace")
            found = re.fullmatch(r"pid (\d{1,9}) on (.*)\n", text)
            if found and found[2] == socket.gethostname():
                return not _is_running(int(found[1]))
        return False

    def has_ended(self, how: str | None, *, was_gone: bool) -> bool:
        """Return whether the run has ended; its process may live on, as in a notebook."""
        return how is not None

    def is_writing(self, incidents: Collection[int]) -> bool:
        """Return whether it lives and the post-mortem of an incident is missing."""
        written = [
            folder.name
            for folder in incident_folders(self._run.incidents)
            if (folder / "postmortem.md").exists()
        ]
        return not self.is_gone() and not all(
            any(name.startswith(f"{number:04d}-step-") for name in written) for number in incidents
        )


class Liveness:
    """The status of a run, from its journal and its process."""

    def __init__(self, process: Owner | WriterProcess, stall_seconds: float) -> None:
        self.process = process
        self._stall_seconds = stall_seconds
        self._began = time.time()

    def status(self, feed: Feed) -> RunStatus:
        """Poll the feed; return the status of the run."""
        was_gone = self.process.is_gone()
        feed.poll()  # after that check, so that the last line of a process that is gone is read
        if self.process.has_ended(feed.ended, was_gone=was_gone):
            return RunStatus.ENDED
        if was_gone:
            return RunStatus.DIED
        if feed.has_more:  # the rest of a long journal has not been read yet
            return RunStatus.RUNNING
        silent = feed.totals.seconds_silent(time.time(), self._began)
        return feed.totals.status(None, silent, self._stall_seconds)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError):  # a zombie has ended; only Linux has the file
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] != "Z"
    return True
