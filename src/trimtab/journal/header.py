"""The header of a sealed segment: what is where, with a checksum for every chunk.

    magic | header line | entries | axes | columns and masks | header line again | trailer

The header is a line like all others (see lines.py). It lists the sections in file order, so offsets
are computed and never read from the file: none can be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from trimtab.core.block import IntArray
from trimtab.journal.lines import Entry, encode_line

MAGIC = b"TRIMTAB\n"
TRAILER_BYTES = 16

CHUNK_ROWS = 4096
"""Rows under one checksum: what one damaged byte costs of one signal. A multiple of 8, so that
packed masks are cut at whole bytes."""

MASK_CHUNK = CHUNK_ROWS // 8
NUMBER_CHUNK = CHUNK_ROWS * 8
"""Bytes of a mask, and of a column or an axis, under one checksum."""

MAX_ROWS = 2**24
"""No file holds more rows, so no header can ask for unlimited memory."""

AXES = ("step", "tick", "attempt", "position")
KIND = "sealed"


@dataclass(frozen=True, slots=True)
class Axis:
    """How the integers of one axis are stored: as a range, or as numbers with checksums."""

    start: int = 0
    stride: int = 0
    checksums: Sequence[int] | None = None

    @classmethod
    def of(cls, values: IntArray) -> "Axis | None":
        """Return the range that numbers are; None if they are none."""
        start = int(values[0]) if len(values) else 0
        span = cls(start=start, stride=int(values[1]) - start if len(values) > 1 else 0)
        is_range = span.fits(len(values)) and bool((np.diff(values) == span.stride).all())
        return span if is_range else None

    def fits(self, rows: int) -> bool:
        """Return whether a range of this many numbers fits in 64 bits."""
        ends = (self.start, self.stride, self.start + self.stride * rows)
        return all(-(2**63) <= end < 2**63 for end in ends)

    def fill(self, out: IntArray) -> None:
        if self.stride:
            out[:] = np.arange(self.start, self.start + self.stride * len(out), self.stride)
        else:
            out.fill(self.start)


class Signal(NamedTuple):
    """How one signal is stored: its values, and a mask if it was not recorded in every row."""

    checksums: Sequence[int]
    mask: Sequence[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a sealed segment holds."""

    schema: int
    rows: int
    last_tick: int
    """The highest tick, -1 if there are no rows."""
    axes: dict[str, Axis]
    signals: dict[str, Signal]
    entries_bytes: int
    entries_checksum: int

    def line(self) -> bytes:
        """Return the header as a line of the file."""
        entry = {
            "kind": KIND,
            "schema": self.schema,
            "rows": self.rows,
            "chunk": CHUNK_ROWS,
            "last_tick": self.last_tick,
            "notes": [self.entries_bytes, self.entries_checksum],
            "axes": [_axis_terms(self.axes[name]) for name in AXES],
            "signals": [[name, one.checksums, one.mask] for name, one in self.signals.items()],
        }
        return encode_line(entry)

    @classmethod
    def parse(cls, entry: Entry) -> "Header":
        """Return the header in an entry; raises ValueError if it is not valid."""
        rows, notes, axes = entry.get("rows"), entry.get("notes"), entry.get("axes")
        if entry.get("kind") != KIND or entry.get("chunk") != CHUNK_ROWS:
            raise ValueError("its header has a different layout")
        if not _is_count(rows) or rows > MAX_ROWS:
            raise ValueError(f"its header claims {rows!r} rows, the limit is {MAX_ROWS}")
        if not isinstance(axes, list) or len(axes) < len(AXES):
            raise ValueError("its header lacks an axis")
        if not (isinstance(notes, list) and len(notes) >= 2 and all(map(_is_count, notes[:2]))):
            raise ValueError("its header does not say where the entries are")
        schema, last_tick = entry.get("schema"), entry.get("last_tick")
        if not _is_count(schema) or type(last_tick) is not int:
            raise ValueError("its header lacks the schema or the last tick")
        return cls(
            schema=schema,
            rows=rows,
            last_tick=last_tick,
            axes={name: _axis(terms, rows) for name, terms in zip(AXES, axes, strict=False)},
            signals=_signals(entry.get("signals"), rows),
            entries_bytes=notes[0],
            entries_checksum=notes[1],
        )

    def offsets(self) -> dict[tuple[str, str], int]:
        """Return where each section begins, relative to the end of the first header."""
        offsets: dict[tuple[str, str], int] = {("entries", ""): 0}
        at = self.entries_bytes
        for name, axis in self.axes.items():
            if axis.checksums is not None:
                offsets["axis", name] = at
                at += 8 * self.rows
        for name, signal in self.signals.items():
            offsets["values", name] = at
            at += 8 * self.rows
            if signal.mask is not None:
                offsets["mask", name] = at
                at += -(-self.rows // 8)
        offsets["end", ""] = at
        return offsets


def trailer(line: bytes) -> bytes:
    """Return the last bytes of a file, which locate the second copy of its header."""
    return b"%08x" % len(line) + MAGIC


def _axis_terms(axis: Axis) -> list[Any]:
    if axis.checksums is None:
        return ["range", axis.start, axis.stride]
    return ["numbers", axis.checksums]


def _axis(terms: Any, rows: int) -> Axis:
    match terms:
        case ["range", int(start), int(stride)]:
            axis = Axis(start=start, stride=stride)
            if axis.fits(rows):
                return axis
        case ["numbers", list(sums)] if len(sums) == num_chunks(rows):
            return Axis(checksums=sums)
    raise ValueError("its header has an axis of an unknown kind")


def _signals(terms: Any, rows: int) -> dict[str, Signal]:
    if not isinstance(terms, list):
        raise ValueError("its header does not list the signals")
    chunks = num_chunks(rows)
    signals: dict[str, Signal] = {}
    try:
        for name, sums, mask in terms:
            if len(sums) != chunks or (mask is not None and len(mask) != chunks):
                raise ValueError(f"its header has the wrong number of checksums for {rows} rows")
            signals[name] = Signal(sums, mask)
    except TypeError as error:
        raise ValueError("its header has a signal of an unknown kind") from error
    if len(signals) < len(terms) or not all(isinstance(name, str) for name in signals):
        raise ValueError("its header does not name every signal exactly once")
    return signals


def num_chunks(rows: int) -> int:
    """Return how many checksums an axis, a column or a mask of this many rows has."""
    return -(-rows // CHUNK_ROWS)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0
