"""What the tests of the readers share."""

from collections.abc import Callable
from pathlib import Path

from trimtab.core.block import Block

Write = Callable[..., Path]
"""Writes a log (content, name) and returns its path."""


def values(block: Block, name: str) -> list[float | None]:
    """A column with None for what is missing."""
    column = block.column(name)
    pairs = zip(column.values.tolist(), column.present.tolist(), strict=True)
    return [value if present else None for value, present in pairs]
