"""A progress bar that appears only when the work takes longer than two seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

QUIET_SECONDS = 2.0


class Advance(Protocol):
    """Called with what is being done, how much of it is done, and how much there is."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report how far the work is."""
        ...


@contextmanager
def progress_bar() -> Iterator[Advance]:
    """Yield a function to call with (stage, done, total); the bar is on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    bar = Progress(console=console, transient=True)
    task = bar.add_task("")
    started = time.monotonic()
    shown = False
    current = ""

    def advance(stage: str, done: int, total: int) -> None:
        nonlocal shown, current
        if stage != current:
            current = stage
            bar.reset(task, description=stage)
        if not shown and console.is_terminal and time.monotonic() - started > QUIET_SECONDS:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
