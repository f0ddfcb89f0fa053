"""Segment: one file of a journal, open or sealed, as the assembly reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.core.block import BoolArray, FloatArray, IntArray
from trimtab.journal.format.damage import Damage
from trimtab.journal.format.header import Axis
from trimtab.journal.format.lines import Entry


@dataclass(slots=True)
class ColumnTarget:
    """Where the rows of one signal go; no mask if every row is recorded."""

    values: FloatArray
    present: BoolArray | None


@dataclass(slots=True)
class ReadLosses:
    """What could not be read: whole rows, or rows of one signal."""

    rows: list[slice] = field(default_factory=list)
    values: list[tuple[str, slice]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


class Segment(Protocol):
    """The records and other entries of one file."""

    @property
    def file(self) -> str:
        """The name of the file."""
        ...

    @property
    def rows(self) -> int:
        """The number of records."""
        ...

    @property
    def last_tick(self) -> int:
        """The highest tick, -1 if there are no records."""
        ...

    @property
    def schema(self) -> int:
        """The highest schema that it names."""
        ...

    @property
    def entries(self) -> Sequence[Entry]:
        """Its lines that are not records, parsed."""
        ...

    @property
    def damage(self) -> Sequence[Damage]:
        """The damage found before any column was read."""
        ...

    def names(self) -> Mapping[str, bool]:
        """Its signals, and whether each was recorded in every row."""
        ...

    def ranges(self) -> Mapping[str, Axis]:
        """Its axes that are a range."""
        ...

    def read(self, axes: Mapping[str, IntArray], columns: Mapping[str, ColumnTarget]) -> ReadLosses:
        """Fill the requested axes, the tick among them, and the requested columns."""
        ...
