"""What the tests of the readers share."""

from collections.abc import Callable
from pathlib import Path
from types import EllipsisType

from trimtab.core.block import Block
from trimtab.core.run import Run

Write = Callable[..., Path]
"""Writes a log (content, name) and returns its path."""


def values(block: Block, name: str) -> list[float | None]:
    """A column with None for what is missing."""
    column = block.column(name)
    pairs = zip(column.values.tolist(), column.present.tolist(), strict=True)
    return [value if present else None for value, present in pairs]


def assert_reads(run: Run, columns: str, *notes: str | EllipsisType) -> None:
    """The run has these columns, and these notes; `...` leaves the notes open.

    "step=1 2; loss=nan -" has two rows: a loss that is NaN, and one that is missing.
    """
    axes = {"step": run.block.step, "attempt": run.block.attempt}
    for name, _, cells in (column.rpartition("=") for column in columns.split("; ")):
        found = axes[name].tolist() if name in axes else values(run.block, name)
        wanted = [None if cell == "-" else float(cell) for cell in cells.split()]
        assert [cell if cell is None else repr(float(cell)) for cell in found] == [
            cell if cell is None else repr(cell) for cell in wanted
        ], name
    if ... not in notes:
        assert run.notes == notes


def cells(numbers: range | list[float]) -> str:
    """Numbers as `assert_reads` takes them."""
    return " ".join(map(str, numbers))
