"""One writer per journal: an advisory lock that ends with its owner."""

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from trimtab.core.errors import JournalError


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
