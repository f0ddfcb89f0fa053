"""A sign of life for work of over two seconds, on standard error: a bar in a terminal, else a line.

Where `CI` is set there is none.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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


_LOSS_SECONDS = 0.2
"""Interval between updates of the displayed loss: reading it synchronizes with the device."""
_LINE_STEPS = 10
"""Steps from one line to the next where no bar may be drawn. Source: stability guides look at a run
every ten steps."""


def is_first_rank() -> bool:
    """Return whether this process is the one that may print."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def training_progress(
    steps: int,
) -> Iterator[tuple[Callable[[int, int], None], Callable[[int, Any], None]]]:
    """Show how far a training is, on standard error of the first rank.

    In a terminal a bar with the loss, else a line every ten steps. Yields two functions: for the
    progress of preparing text, and for the number of steps done with the last loss.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = Progress(
        console=console,
        transient=True,
        disable=not (is_first_rank() and shows_progress(console)),
    )
    task = bar.add_task("preparing text", total=None)
    last_read = 0.0
    last_line = (-1, 0.0)

    def on_text(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    def on_step(done: int, loss: Any) -> None:
        nonlocal last_read, last_line
        if bar.disable:
            before, began = last_line
            if before < 0:  # after a resume it is not the first step
                last_line = (done, time.monotonic())
            elif done % _LINE_STEPS == 0 and is_first_rank():
                last_line = (done, time.monotonic())
                seconds = (last_line[1] - began) / (done - before)
                sys.stderr.write(
                    f"step {done} of {steps}, loss {loss.item():.4f}, {seconds:.3g} s a step\n"
                )
            return
        if bar.get_time() - last_read > _LOSS_SECONDS:
            last_read = bar.get_time()
            bar.update(task, description=f"loss {loss.item():.3f}")
        bar.update(task, completed=done, total=steps)

    with bar:
        yield on_text, on_step
