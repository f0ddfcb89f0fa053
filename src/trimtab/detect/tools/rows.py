"""Values of one signal with the place where they were recorded: a single one, or many as arrays."""

from dataclasses import dataclass
from typing import NamedTuple

from trimtab.core.block import Block, FloatArray, IntArray


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
    """Many values of one signal, and where they were recorded."""

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
