"""What a trainer's text log looks like: which lines matter and what they contain.

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
"""A number as loggers print it, with groups of digits, NaN and infinity. It matches in one way
only: otherwise a line that nearly fits would be tried with every split of its numbers."""


class Place(Enum):
    """Where the values of a line belong."""

    RECORD = auto()
    """In a new record."""
    ABOVE = auto()
    """In the record above: a record of several lines."""
    BELOW = auto()
    """In the next record: printed before it. The first value wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One kind of line."""

    mark: str
    """Text in every such line. Tried before the pattern, because most lines are irrelevant."""
    pattern: re.Pattern[str]
    """Found anywhere in the line, so that any launcher prefix is accepted. Its groups are cells,
    under the names of the groups."""
    fields: Callable[[str], Fields] | None = None
    """Parses the rest of the line, after the pattern."""
    place: Place = Place.RECORD
    prefix: str = ""
    """Put before the names of the fields, to distinguish evaluation from training."""
    count: str = ""
    """The column of the next record that counts such lines before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """One text format."""

    name: str
    """The name of the format, as given to `--format`."""
    trainer: str
    """The trainer that writes such logs."""
    sign: re.Pattern[str]
    """Recognises the format, in any line that may hold a record."""
    lines: tuple[Line, ...]
    """The kinds of lines, in the order in which they are tried."""
    meanings: tuple[Alias, ...] = ()
    """What the columns mean, as far as it differs from the alias table."""
    grouped: frozenset[str] = frozenset()
    """Columns whose digits are in groups: 1,234."""
    finish: Callable[[Table], None] | None = None
    """Corrects what can be judged only once the whole log is read."""
