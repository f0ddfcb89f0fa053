"""Tables in a log: a line of names, then lines of cells without names.

The delimiter is a bar, a tab, a comma, or blanks. Rulers and borders do not matter.
"""

import re
from dataclasses import dataclass

from trimtab.readers.cells import parse_number

MAX_CELLS = 200
"""More cells than this in a line of text are data, not a table of metrics."""

_RULER = re.compile(r"[\s|+:=#*_-]*")
_BLANKS = re.compile(r"\s{2,}")
_WORDY = re.compile(r"[^\W\d]")
_UNIT = re.compile(r"(?<=[\d.])\s?(?:%|[A-Za-z]{1,3}(?:/[A-Za-z]{1,4})?)$")
_COUNT = re.compile(r"(\d{1,18})/\d{1,18}")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?|[-+]?\d{1,9},\d{1,9}")
_REMARKS = frozenset({"notes", "note", "comment", "comments", "remarks"})
"""Last columns that are mostly empty."""
_NOTHING = frozenset({"", "-", "--", "n/a", "na", "no log", "none", "null", "?"})


@dataclass(frozen=True, slots=True)
class Header:
    """A line of names."""

    names: tuple[str, ...]
    delimiter: str
    """A character, or a blank for any number of blanks."""


def is_ruler(line: str) -> bool:
    return _RULER.fullmatch(line) is not None


def find_headers(line: str, above: str = "") -> list[Header]:
    """Return what the names in a line, with those above it, may be if it is the head of a table."""
    text = line.strip().lstrip("#").strip()
    if not text or len(text) > 5_000:
        return []
    headers = []
    upper = above.strip().lstrip("#").strip()
    for delimiter in ("|", "\t", ",", ";", "  ", " "):
        cells = split_row(text, delimiter)
        over = split_row(upper, delimiter)
        # Only names that repeat themselves say that they go on in the next line.
        if len(over) == len(cells) > len(set(over)):
            cells = [f"{one} {other}".strip() for one, other in zip(over, cells, strict=True)]
        if 2 <= len(cells) <= MAX_CELLS and all(
            _WORDY.search(cell) or cell in ("#", "") for cell in cells
        ):
            names = tuple(
                cell.strip("*# ") or f"column {place}" for place, cell in enumerate(cells, 1)
            )
            if len(set(names)) == len(names) and all(len(name) <= 40 for name in names):
                headers.append(Header(names, delimiter))
    return headers


def split_row(line: str, delimiter: str) -> list[str]:
    text = line.strip()
    if delimiter == " ":
        return text.split()
    if delimiter == "  ":
        return _BLANKS.split(text)
    if delimiter == "|":
        text = text.removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in text.split(delimiter)]


def parse_row(line: str, header: Header) -> tuple[str | None, ...] | None:
    """Return the numbers of a row under a header, as text; None if the line is no such row."""
    cells = split_row(line, header.delimiter)
    if header.delimiter in (" ", "  ") and len(cells) != len(header.names):
        cells = line.split()
    if len(cells) == len(header.names) - 1 and header.names[-1].lower() in _REMARKS:
        cells = [*cells, ""]
    if len(cells) > len(header.names) and cells[len(header.names) - 1].endswith(":"):
        cells = cells[: len(header.names)]  # a progress bar follows
    if len(cells) == len(header.names) + 1 and header.delimiter.isspace() and cells[0].isdecimal():
        cells = cells[1:]  # the index that pandas prints
    if len(cells) != len(header.names):
        return None
    values = [_parse_cell(cell) for cell in cells]
    texts = [cell for value, cell in zip(values, cells, strict=True) if value is None]
    strange = [cell for cell in texts if cell.lower() not in _NOTHING]
    is_named = any(cell.endswith((":", "=")) for cell in texts)  # the line has its own names
    is_row = not is_named and len(strange) <= 1 and len(values) - len(texts) >= 2
    return tuple(values) if is_row else None


def _parse_cell(cell: str) -> str | None:
    text = cell.strip().strip("*[]()").rstrip(":")
    count = _COUNT.fullmatch(text)
    if count:
        return count[1]
    text = _UNIT.sub("", text)
    try:
        is_number = _GROUPED.fullmatch(text) or parse_number(text) is not None
        return text if is_number else None
    except ValueError:
        return None
