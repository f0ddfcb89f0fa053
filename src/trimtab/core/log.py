"""The log of a run: what trimtab says to who trains."""

import logging
import sys
from contextlib import ExitStack, suppress

log = logging.getLogger("trimtab")


class _DefaultHandler(logging.Handler):
    """Writes to stderr as long as the program has configured no logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line above the progress bars; that it cannot be written is no error of the loop.

        Rich redirects stderr while it draws. The bars of tqdm are cleared and drawn again, as by
        `tqdm.write`, but without its lock: a forked child may have inherited it locked for ever.
        """
        if logging.root.handlers:
            return
        with suppress(Exception), ExitStack() as drawn_again:
            if tqdm := sys.modules.get("tqdm.std"):  # never imported by trimtab
                with suppress(Exception):
                    cleared = tqdm.tqdm.external_write_mode(sys.stderr, nolock=True)
                    drawn_again.enter_context(cleared)
            sys.stderr.write(f"{record.getMessage()}\n")


def log_to_stderr_by_default() -> None:
    """Show the log of a guard in a script that never configured logging.

    Without this, Python would show warnings only, and nobody would see that a run is watched, where
    it is written, or from which checkpoint it resumed.
    """
    if not log.handlers and not logging.root.handlers:
        log.addHandler(_DefaultHandler())
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO)
