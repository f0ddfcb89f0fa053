"""ShipLog: what the shipper reports, in ship.log; important lines go to the user too.

Messages are written without secrets.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from trimtab.core.errors import JournalError
from trimtab.journal import RunDirectory
from trimtab.journal.files import open_regular
from trimtab.observe.shipping.cursor import ship_folder
from trimtab.observe.shipping.transport import SECRETS

MAX_LINE = 500
"""Characters of one line; an answer of a server may be a whole page."""


class ShipLog:
    """Writes lines to ship.log; what the user should read is handed on too. It never raises."""

    def __init__(self, run: RunDirectory, warn: Callable[[str], None] | None) -> None:
        """`warn` passes a line to the training log, or to a person."""
        self._run = run
        self._warn = warn
        self._lock = threading.Lock()

    def info(self, message: str) -> None:
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
        """Write to ship.log, and hand on."""
        self.info(message)
        if self._warn is not None:
            self._warn(self._line(message))

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
