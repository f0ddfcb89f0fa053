"""Files of a run: how one is read and replaced, the segments of a journal, and its lock.

00000000.log is an open segment, 00000000.seg a sealed one.
"""

import errno
import fcntl
import os
import re
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from itertools import islice
from pathlib import Path

from trimtab.core.errors import JournalError


def open_regular(path: Path) -> FileIO:
    """Open a regular file to be read, unbuffered; raises OSError for anything else.

    Opening a named pipe waits for a writer and `/dev/zero` never ends, and a run directory may come
    from a stranger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return FileIO(descriptor)


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; raises OSError for anything else."""
    with open_regular(path) as file:
        return file.readall()


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a small file atomically: a reader gets the old content or the new one.

    It is written under another name, and renamed once it is on disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


_NAME = re.compile(r"(\d{8,})\.(?:log|seg)")

_MAX_PROBES = 1000
"""Gaps in the numbering that are checked one by one; a stray 99999999.log must not cost minutes."""


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """The files in a journal folder; other files there are left alone."""

    folder: Path

    def log(self, index: int) -> Path:
        """Return the open file of one segment."""
        return self.folder / f"{index:08d}.log"

    def sealed(self, index: int) -> Path:
        """Return the sealed file of one segment."""
        return self.folder / f"{index:08d}.seg"

    def draft(self, index: int) -> Path:
        """Return the name under which a sealed file is written, before it gets its own."""
        return self.folder / f".{index:08d}.seg.tmp"

    def exists(self, index: int) -> bool:
        """Return whether a segment exists."""
        # In this order: the sealed file appears before the log goes, so one of the two is seen.
        return self.log(index).exists() or self.sealed(index).exists()

    def indices(self) -> list[int]:
        """Return the numbers of all segments, in order."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        found = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        # A listing may miss a segment that is being sealed: check for it by name.
        gaps = (index for index in range(max(found, default=0)) if index not in found)
        found.update(index for index in islice(gaps, _MAX_PROBES) if self.exists(index))
        return sorted(found)

    def after(self, index: int) -> int | None:
        """Return the number of the next segment; None if there is none yet."""
        later = next((found for found in self.indices() if found > index), None)
        # The listing may have missed a segment that was renamed while it was made.
        if later not in (None, index + 1) and self.exists(index + 1):
            return index + 1
        return later


class JournalLock:
    """Held from construction until it is released or the process ends."""

    def __init__(self, path: Path) -> None:
        """Take the lock; raises JournalError if another writer holds it."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            if owner == _name():
                raise JournalError(
                    f"{path.parent} is being written by this process; close that writer first "
                    "(guard.close()), or choose another run directory"
                ) from None
            raise JournalError(
                f"{path.parent} is being written by another process ({owner or 'not named'}); "
                "wait for it to end, or choose a different run directory"
            ) from None
        except OSError:
            # Some cluster file systems have no locks. A journal without its lock is better than
            # none: the lock only guards against mistakes.
            pass
        owner = f"{_name()}\n"
        with suppress(OSError):  # the name of the owner is optional; a full disk may refuse it
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, owner.encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _name() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
