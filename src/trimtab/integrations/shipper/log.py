"""ShipLog: what the shipper reports, in ship.log; important lines in the training log too.

Messages are written without secrets.
"""

import logging
import os
import sys
import threading
import time

from trimtab.core.errors import JournalError
from trimtab.integrations.shipper.cursor import ship_folder
from trimtab.integrations.transport import SECRETS
from trimtab.journal import RunDirectory
from trimtab.journal.files import open_regular

MAX_LINE = 500
"""Characters of one line; an answer of a server may be a whole page."""


class ShipLog:
    """Writes lines to ship.log and to a descriptor that the training process, or a person, reads.

    It never blocks and never raises: a training process that does not read, or is gone, costs the
    line there, not the shipping.
    """

    def __init__(self, run: RunDirectory, descriptor: int | None) -> None:
        self._run = run
        self._descriptor = descriptor
        self._lock = threading.Lock()
        if descriptor is not None and not os.isatty(descriptor):
            os.set_blocking(descriptor, False)

    def info(self, message: str) -> None:
        """Write to ship.log."""
        line = self._line(message)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            try:
                folder = ship_folder(self._run)
                folder.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                with open_regular(folder / "ship.log", flags) as file:
                    file.write(f"{stamp} {line}\n".encode())
            except (OSError, JournalError):  # a full disk; the line is still in the training log
                pass

    def warning(self, message: str) -> None:
        """Write to ship.log and to the training log."""
        self.info(message)
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, f"{self._line(message)}\n".encode())
            except OSError:  # full, or nothing reads it any more
                self._descriptor = None

    def _line(self, message: str) -> str:
        line = " ".join(SECRETS.hide(message).split())
        return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..."


def connect_logger(log: ShipLog) -> None:
    """Send the warnings of the logger `trimtab.ship`, which sinks use, to the log alone."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.warning(record.getMessage())

    logger = logging.getLogger("trimtab.ship")
    logger.handlers = [Handler(logging.WARNING)]
    logger.propagate = False


def standard_error() -> int | None:
    """Return the descriptor of standard error, if there is one."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return None
