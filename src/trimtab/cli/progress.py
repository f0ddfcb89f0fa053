"""A sign of life for work of over two seconds, on standard error: a bar in a terminal, else a line.

Where `CI` is set there is none.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

QUIET_SECONDS = 2.0


def shows_progress(console: "Console") -> bool:
    """Return whether a bar may be drawn: in a terminal, outside CI."""
    return console.is_terminal and not _is_in_ci()


def _is_in_ci() -> bool:
    # Some CI systems give their jobs a terminal.
    return os.environ.get("CI", "").strip().lower() not in {"", "0", "false"}


@contextmanager
def progress_bar(what: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to call with (stage, done, total), for work on `what`."""
    from rich.console import Console
    from rich.progress import Progress

    from trimtab.core.text import printable

    console = Console(file=sys.stderr)
    bar = Progress(console=console, transient=True)
    task = bar.add_task("Reading" if what else "Working", total=None)

    def appear() -> None:
        if what == "-" and bar.tasks[0].total is None:
            return  # standard input says itself that it is waited for
        if shows_progress(console):
            bar.start()
        elif not _is_in_ci():
            now = bar.tasks[0]
            doing = f"{now.description.lower()} {what}".rstrip()
            done = f", {now.percentage:.0f} %" if now.total else ""
            sys.stderr.write(printable(f"trimtab: {doing}{done}") + "\n")

    def advance(stage: str, done: int, total: int) -> None:
        if stage != bar.tasks[0].description:
            bar.reset(task, description=stage)
        bar.update(task, completed=done, total=total)

    # By the clock: what takes long may not report how far it is.
    timer = threading.Timer(QUIET_SECONDS, appear)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()  # a bar that is just appearing is stopped too
        if bar.live.is_started:
            bar.stop()
