"""Endings: a run that is terminated, or never closed, still says how it ended."""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

CLOSE_SECONDS = 5.0
"""How long a SIGTERM waits for the journal: schedulers send SIGKILL after 10 s or more."""


class Endings:
    """Calls `close` with the reason when the process is told to stop or simply ends."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._previous: Any = None
        self._is_installed = False
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._is_installed = True

    def remove(self) -> None:
        """Put everything back as it was found."""
        atexit.unregister(self._at_exit)
        # A handler can only be set in the main thread; in another one we are ending by SIGTERM.
        is_main = threading.current_thread() is threading.main_thread()
        # Somebody may have put a handler of his own on top of ours; that one stays.
        is_ours = self._is_installed and signal.getsignal(signal.SIGTERM) == self._on_sigterm
        if is_main and is_ours:
            signal.signal(signal.SIGTERM, self._previous)
        self._is_installed = False

    def _at_exit(self) -> None:
        self._close("the program ended without closing the guard")

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        # In a thread, because the main one may hold a lock that closing needs; it waits here.
        closing = threading.Thread(target=self._close, args=("SIGTERM",), daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        previous = self._previous
        if callable(previous):
            previous(number, frame)
        elif previous != signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
