"""Progress bars: only in a terminal, never in CI, and not for work of under two seconds."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

QUIET_SECONDS = 2.0


def shows_progress(console: "Console") -> bool:
    """Return whether a bar may be drawn: in a terminal, outside CI.

    CI systems set `CI`, and some of them give their jobs a terminal.
    """
    is_in_ci = os.environ.get("CI", "").strip().lower() not in {"", "0", "false"}
    return console.is_terminal and not is_in_ci


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to call with (stage, done, total); the bar is on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    is_wanted = shows_progress(console)
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
        if not shown and is_wanted and time.monotonic() - started > QUIET_SECONDS:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
