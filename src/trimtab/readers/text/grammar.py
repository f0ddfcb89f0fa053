"""What a trainer's text log looks like: which of its lines matter and what they say.

A format is a `Grammar` and nothing else: `parser.py` reads them all.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from trimtab.readers.aliases import Alias
from trimtab.readers.table import Table

Fields = Iterable[tuple[str, object]]
"""Names and cells."""

NUMBER: Final = (
    r"(?>[-+]?(?:\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+|[nN][aA][nN]|[iI][nN][fF]))"
)
"""A number as loggers print it, with groups of digits and what is not finite. It matches in one
way only: otherwise a line that nearly fits would be tried in all ways of cutting its numbers."""


class Place(Enum):
    """Where the values of a line belong."""

    RECORD = auto()
    """In a record of their own."""
    ABOVE = auto()
    """In the record above: a record of several lines."""
    BELOW = auto()
    """In the record that comes next: what was printed on the way to it. The first one wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One kind of line."""

    mark: str
    """What every such line holds. Tried before the pattern, because most lines are of no use."""
    pattern: re.Pattern[str]
    """Found anywhere in the line, so that any prefix of a launcher will do. What its groups catch
    are cells, under the names of the groups."""
    fields: Callable[[str], Fields] | None = None
    """Takes the rest of the line apart, what is behind the pattern."""
    place: Place = Place.RECORD
    prefix: str = ""
    """Put before the names of the fields, to tell those of an evaluation from those of training."""
    count: str = ""
    """The column in which the next record says how many such lines came before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """One text format."""

    name: str
    """The name of the format, as given to `--format`."""
    trainer: str
    """The trainer that writes such logs."""
    sign: re.Pattern[str]
    """By which the format is recognised, in any line that may hold a record."""
    lines: tuple[Line, ...]
    """The kinds of lines, in the order in which they are tried."""
    meanings: tuple[Alias, ...] = ()
    """What the columns mean, as far as it differs from the alias table."""
    grouped: frozenset[str] = frozenset()
    """Columns in which digits stand in groups: 1,234."""
    finish: Callable[[Table], None] | None = None
    """Sets right what can be judged only when all is read."""
