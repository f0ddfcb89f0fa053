"""Liveness: whether the process of a run is alive, and how it ended.

The journal's lock is not tried for this: to hold it for a moment would make a writer that starts at
that moment fail.
"""

import contextlib
import os
import re
import select
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.sink import GUARD_CLOSED, RunStatus
from trimtab.journal import RunDirectory, RunTotals
from trimtab.journal.exit_request import ExitRequest
from trimtab.journal.files import read_regular


class Owner:
    """The training process that started this observer: a pipe from it, and its process id.

    The pipe ends with the process. A data loader worker may keep it open for longer, so the parent
    of this process is checked as well.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._parent = os.getppid()
        self._said = b""
        self._is_gone = False
        self._death = ""

    def is_gone(self) -> bool:
        """Return whether it has closed its guard, or is no more."""
        while not self._is_gone and select.select([self._pipe], [], [], 0)[0]:
            data = os.read(self._pipe, 64)
            self._said = (self._said + data)[-256:]
            self._is_gone = not data
        if os.getppid() != self._parent:
            self._is_gone = True
        if self._is_gone and not self._death:
            self._death = _death_of(self._parent)
        return self._is_gone

    def wait(self, seconds: float) -> bool:
        """Wait until it says something or is gone, at most so long; return whether it did."""
        return bool(select.select([self._pipe], [], [], seconds)[0])

    def has_ended(self, how: str | None, *, was_gone: bool) -> bool:
        """Return whether the run has ended; an end in the journal may be of an earlier launch."""
        return was_gone and (how is not None or GUARD_CLOSED in self._said)

    def how_it_died(self) -> str:
        """Return the signal or exit code, if the system still knows it."""
        return self._death


class WriterProcess:
    """The process that writes the journal, by the name that it left in the lock file.

    For an observer that a person starts. On a different host nothing is known about it.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def _pid(self) -> int | None:
        with contextlib.suppress(OSError):
            text = read_regular(self._run.home / "journal.lock").decode("utf-8", "replace")
            found = re.fullmatch(r"pid (\d{1,9}) on (.*)\n", text)
            if found and found[2] == socket.gethostname():
                return int(found[1])
        return None

    def is_gone(self) -> bool:
        """Return whether it ran on this host and is no more."""
        pid = self._pid()
        return pid is not None and not _is_running(pid)

    def has_ended(self, how: str | None, *, was_gone: bool) -> bool:
        """Return whether the run has ended; its process may live on, as in a notebook."""
        return how is not None

    def how_it_died(self) -> str:
        """Return the signal or exit code, if the system still knows it."""
        pid = self._pid()
        return "" if pid is None else _death_of(pid)


TrainingProcess = Owner | WriterProcess
"""The process that writes the journal of a run, as an observer knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands."""

    status: RunStatus
    how: str
    """What is known about it, in a few words; empty while the run is running."""


class Liveness:
    """The standing of a run, from its journal and its process."""

    def __init__(self, run: RunDirectory, process: TrainingProcess, stall_seconds: float) -> None:
        self._run = run
        self.process = process
        self._stall_seconds = stall_seconds
        self._began = time.time()

    def standing(self, totals: RunTotals, ended: str | None, *, was_gone: bool) -> Standing:
        """Return how the run stands; `was_gone` is of before its journal was read to `ended`."""
        if self.process.has_ended(ended, was_gone=was_gone):
            request = None if ended is None else ExitRequest.read(self._run.home)
            why = "" if request is None else f": {request.reason}"
            return Standing(status=RunStatus.ENDED, how=f"{ended or 'its guard was closed'}{why}")
        if was_gone:
            how = self.process.how_it_died() or "its process is gone"
            return Standing(status=RunStatus.DIED, how=f"{how}, and no end was written")
        silent = totals.seconds_silent(time.time(), self._began)
        status = totals.status(None, silent, self._stall_seconds)
        # The limit and not the present silence: the next look must not be news.
        how = f"no record for over {self._stall_seconds:.0f} s"
        return Standing(status=status, how=how if status is RunStatus.STALLED else "")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _stat(pid).startswith("Z")


def _stat(pid: int) -> str:
    """Return the state of a process and what follows it; only Linux has the file."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].strip()
    return ""


_EXIT_CODE = 49
"""The field of the wait status, counted from the state of a process (proc(5), field 52)."""


def _death_of(pid: int) -> str:
    """Return how a process died; the system knows it until the parent of the process asks."""
    fields = _stat(pid).split()
    if not fields or fields[0] != "Z" or len(fields) <= _EXIT_CODE:
        return ""
    status = int(fields[_EXIT_CODE])
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"killed by signal {number}"
    return f"its process ended with code {os.WEXITSTATUS(status)}"
