"""Records as detectors take them: one by one in plain Python, or one signal of many as arrays.

A live step brings one record; for that, numpy would cost more than the sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trimtab.core.block import Block, FloatArray, IntArray
from trimtab.core.signals import Quality


class Seen(NamedTuple):
    """One value of one signal, and where it was recorded."""

    tick: int
    step: int
    value: float

    @classmethod
    def at(cls, block: Block, row: int, value: float) -> "Seen":
        """A value of one row of a block, in plain numbers."""
        return cls(int(block.tick[row]), int(block.step[row]), float(value))


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one signal that a detector looks at, and where they were recorded."""

    tick: IntArray
    step: IntArray
    value: FloatArray

    @classmethod
    def of(cls, block: Block, name: str, rows: IntArray) -> "Series":
        """The values of a signal in some rows of a block."""
        return cls(block.tick[rows], block.step[rows], block.column(name).values[rows])

    def __len__(self) -> int:
        return len(self.tick)

    def one(self, at: int) -> Seen:
        """One of the values."""
        return Seen(int(self.tick[at]), int(self.step[at]), float(self.value[at]))


@dataclass(slots=True)
class Row:
    """One record of a block."""

    step: int
    tick: int
    attempt: int
    data_position: int
    signals: dict[str, float]
    """Only what was recorded, finite or not; a name that is absent is missing."""
    qualities: Mapping[str, Quality]


def rows_of(block: Block) -> list[Row]:
    """The records of a short block, one by one."""
    axes = zip(
        block.step.tolist(),
        block.tick.tolist(),
        block.attempt.tolist(),
        block.data_position.tolist(),
        strict=True,
    )
    qualities = block.qualities
    rows = [Row(step, tick, attempt, at, {}, qualities) for step, tick, attempt, at in axes]
    if len(rows) == 1:  # a live step: item() spares two lists per signal
        signals = rows[0].signals
        for name, column in block.columns.items():
            if column.present.item():
                signals[name] = column.values.item()
        return rows
    for name, column in block.columns.items():
        for row, value, present in zip(
            rows, column.values.tolist(), column.present.tolist(), strict=True
        ):
            if present:
                row.signals[name] = value
    return rows
