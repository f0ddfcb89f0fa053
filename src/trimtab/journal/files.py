"""Files of a run: how one is read and replaced, the segments of a journal, and its lock.

00000000.log is an open segment, 00000000.seg a sealed one.
"""

import errno
import fcntl
import json
import os
import re
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedWriter, FileIO
from itertools import islice
from pathlib import Path
from typing import Any

from trimtab.core.errors import JournalError
from trimtab.core.text import printable

MAX_BYTES = 2**26
"""Bytes of a file that is read at once. Chosen: the manifest of a checkpoint with 100,000 files has
13 MB, and a sparse file of a terabyte takes no space on the disk of a stranger."""

_LINK = "a symbolic link, not a regular file or folder"


def inside(folder: Path, *names: str) -> Path:
    """Return a path inside a folder; raises OSError where a name or a link could lead out of it.

    The folder itself may be a link, because its user has named it. What is below may come from a
    stranger. Every path that is made from the content of a file goes through here.
    """
    path = folder
    for name in "/".join(names).split("/"):
        path /= name
        if name in ("", ".", "..") or not name.isprintable():
            raise OSError(errno.EINVAL, "not a name inside its folder", str(path))
        if path.is_symlink():
            raise OSError(errno.ELOOP, _LINK, str(path))
    return path


def open_regular(path: Path, flags: int = os.O_RDONLY) -> FileIO:
    """Open a regular file, unbuffered, not through a link; raises OSError for anything else.

    Opening a named pipe waits for a writer and `/dev/zero` never ends, and a run directory may come
    from a stranger.
    """
    try:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, _LINK, str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return FileIO(descriptor, "r+" if flags & (os.O_RDWR | os.O_WRONLY) else "r")


def open_new(path: Path) -> BufferedWriter:
    """Create a file in place of what has its name: a link is removed, never followed."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def read_regular(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file; raises OSError for anything else or anything larger."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, at most {limit:,} are read", str(path))
        return file.readall()


def read_json(path: Path) -> dict[str, Any]:
    """Return the table of a JSON file; raises OSError or ValueError for anything else."""
    try:
        values = json.loads(read_regular(path))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError(f"it should hold a table of fields, got {type(values).__name__}")
    return values


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a small file atomically: a reader gets the old content or the new one.

    It is written under another name, and renamed once it is on disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open_new(draft) as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


_NAME = re.compile(r"([0-9]{8,12})\.(?:log|seg)")
MAX_INDEX = 10**12 - 1
"""The last number of a segment. Chosen: a thousand segments a second fill it in 30 years."""

_MAX_PROBES = 1000
"""Gaps in the numbering that are checked one by one; a stray 99999999.log must not cost minutes."""


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """The files in a journal folder; other files there are left alone."""

    folder: Path

    def log(self, index: int) -> Path:
        return self.folder / f"{index:08d}.log"

    def sealed(self, index: int) -> Path:
        return self.folder / f"{index:08d}.seg"

    def draft(self, index: int) -> Path:
        """Return the name under which a sealed file is written, before it gets its own."""
        return self.folder / f".{index:08d}.seg.tmp"

    def exists(self, index: int) -> bool:
        # In this order: the sealed file appears before the log goes, so one of the two is seen.
        return self.log(index).exists() or self.sealed(index).exists()

    def listed(self) -> set[int]:
        """Return the numbers of the segments that the folder lists."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return set()
        return {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}

    def indices(self) -> list[int]:
        found = self.listed()
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

    def __init__(self, path: Path, is_held: str = "") -> None:
        """Take the lock; raises JournalError if another writer holds it: `is_held`, or who."""
        self._file = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = printable(self._file.read(200).decode(errors="replace").strip())
            self.release()
            if is_held:
                raise JournalError(is_held) from None
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
            # A file with a second name (hard link) may be anything: it is locked, not written.
            if os.fstat(self._file.fileno()).st_nlink == 1:
                self._file.truncate(0)
                self._file.write(owner.encode())

    def release(self) -> None:
        self._file.close()


def _name() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
