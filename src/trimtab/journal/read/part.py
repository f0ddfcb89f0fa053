"""Part: one file of a journal as the assembly sees it, be it open or sealed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.core.block import BoolArray, FloatArray, IntArray
from trimtab.journal.format.damage import Damage
from trimtab.journal.format.lines import Entry


@dataclass(slots=True)
class Target:
    """Where the rows of one signal go; no mask if every row of it is recorded."""

    values: FloatArray
    present: BoolArray | None


@dataclass(slots=True)
class Losses:
    """What could not be read: whole rows, or rows of one signal."""

    rows: list[slice] = field(default_factory=list)
    values: list[tuple[str, slice]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


class Part(Protocol):
    """The records and notes of one file."""

    @property
    def file(self) -> str:
        """The name of the file."""
        ...

    @property
    def rows(self) -> int:
        """How many records it holds."""
        ...

    @property
    def last_tick(self) -> int:
        """The highest tick in it, -1 if it holds no records."""
        ...

    @property
    def schema(self) -> int:
        """The highest schema it names."""
        ...

    @property
    def notes(self) -> Sequence[Entry]:
        """Its lines that are not records, understood."""
        ...

    @property
    def damage(self) -> Sequence[Damage]:
        """What was found damaged before any column was read."""
        ...

    def names(self) -> Mapping[str, bool]:
        """The signals in it, and whether each was recorded in every row."""
        ...

    def read(self, axes: Mapping[str, IntArray], columns: Mapping[str, Target]) -> Losses:
        """Fill the axes, and those of its columns that are asked for."""
        ...
