"""A progress bar that shows itself only when the work takes over two seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

QUIET_SECONDS = 2.0


class Advance(Protocol):
    """Takes how much is done and how much there is."""

    def __call__(self, done: int, total: int) -> None:
        """Tell how far the work is."""
        ...


@contextmanager
def patient_progress(what: str) -> Iterator[Advance]:
    """Yield a function to call with (done, total); the bar is on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    bar = Progress(console=console, transient=True)
    task = bar.add_task(what)
    started = time.monotonic()
    shown = False

    def advance(done: int, total: int) -> None:
        nonlocal shown
        if not shown and console.is_terminal and time.monotonic() - started > QUIET_SECONDS:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
