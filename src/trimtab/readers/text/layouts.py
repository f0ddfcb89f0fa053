"""Layouts: the next line mostly looks like the last one, so its pattern is compiled from it.

A line taken apart pair by pair is the example; what lies between its values becomes one pattern
that catches them all at once, in a third of the time. A line that does not fit is taken apart pair
by pair, with the same result.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from trimtab.core.block import IntArray

MAX_LAYOUTS = 8
"""Layouts learned for one kind of line. A log has two or three; a hostile one must not make us
compile a pattern for each of its lines."""


class Pairs:
    """Finds names and values in the rest of a line.

    Names are to be bounded (`{1,99}`): without an end, each position in a long line would be the
    start of one.
    """

    def __init__(self, name: str, value: str, end: str = "") -> None:
        self._value = value
        self._pair = re.compile(f"{name}({value}){end}")

    def __call__(self, rest: str) -> list[tuple[str, str]]:
        """Names and values, one pair at a time."""
        return self._pair.findall(rest)

    def layout(self, rest: str) -> tuple[list[str], str]:
        """The names in the rest of a line, and a pattern for lines that look like it."""
        names, pattern, position = [], "", 0
        for pair in self._pair.finditer(rest):
            start, end = pair.span(1)
            pattern += _digits(rest[position : pair.start()]) + _blanks(rest[pair.start() : start])
            pattern += re.escape(pair[1]) + _blanks(rest[end : pair.start(2)]) + f"({self._value})"
            names.append(pair[1])
            position = pair.end(2)
        return names, pattern + _digits(rest[position:])


class Layout:
    """Lines of one layout: where their values are, and the values not handed over yet."""

    def __init__(self, names: Sequence[str], pattern: str) -> None:
        self._names = names
        self.match = re.compile(pattern).fullmatch
        self.rows: list[int] = []
        self.cells: list[tuple[str, ...]] = []

    def hand_over(self) -> Iterator[tuple[str, IntArray, Sequence[str]]]:
        """Name, rows and cells of each column since the last call."""
        rows, cells = np.array(self.rows), self.cells
        self.rows, self.cells = [], []
        if len(rows):
            for name, column in zip(self._names, zip(*cells, strict=True), strict=True):
                yield name, rows, column


def _blanks(text: str) -> str:
    """A pattern for the text between a name and its value: numbers are padded with blanks."""
    return " ++".join(re.escape(part) for part in re.split(" +", text))


def _digits(text: str) -> str:
    """A pattern for the text between two pairs, in which unnamed numbers vary."""
    return r"[\d.,]++".join(_blanks(part) for part in re.split(r"\d[\d.,]*", text))
