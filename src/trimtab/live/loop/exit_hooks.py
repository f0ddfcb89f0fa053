"""ExitHooks: a run that is terminated, or never closed, still says how it ended.

A SIGTERM handler is set only where there is none: a user's handler decides what a SIGTERM means,
and the guard keeps working until it is closed.
"""

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

CLOSE_SECONDS = 5.0
"""How long a SIGTERM waits for the journal: schedulers send SIGKILL after 10 s or more."""


class ExitHooks:
    """Calls `close` with the reason when the process is terminated."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = weakref.WeakMethod(close)
        self._handler: _Handler | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        present: Any = signal.getsignal(signal.SIGTERM)
        if isinstance(present, _Handler):  # of another guard
            self._handler = present
        elif present == signal.SIG_DFL:
            self._handler = _Handler()
            signal.signal(signal.SIGTERM, self._handler)
        if self._handler is not None:
            self._handler.closers.append(self._close)

    def remove(self) -> None:
        """Put everything back as it was found."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        handler.closers = [c for c in handler.closers if c is not self._close and c() is not None]
        # A handler can only be set in the main thread; in another one we are ending by SIGTERM.
        is_main = threading.current_thread() is threading.main_thread()
        # The user may have set a handler since; that one stays.
        present: Any = signal.getsignal(signal.SIGTERM)
        if is_main and present is handler and not handler.closers:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Handler:
    """What SIGTERM calls, for all guards of the process; it keeps none of them alive."""

    def __init__(self) -> None:
        self.closers: list[weakref.WeakMethod[Callable[[str], None]]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        present: Any = signal.getsignal(signal.SIGTERM)
        if present is not self:
            return  # a user's handler was set on top and calls this one: it decides
        for closer in self.closers:
            close = closer()
            if close is not None:
                # In a thread, because the main one may hold a lock that closing needs. It waits
                # here, so nothing is trained while the guard is being closed.
                closing = threading.Thread(target=close, args=("SIGTERM",), daemon=True)
                closing.start()
                closing.join(CLOSE_SECONDS)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
