"""Packed records: from `append` until it is sealed, a record is a byte string.

The garbage collector does not track bytes, so a full queue does not trigger it in the middle of a
training step; and columns are cut out of the bytes without touching a number twice.
"""

import json
from collections.abc import Iterable
from math import isfinite
from struct import Struct
from struct import error as StructError

import numpy as np

from trimtab.core.block import Block, Column, IntArray
from trimtab.journal.format.lines import encode, frame

_AXES = ("layout", "step", "tick", "attempt", "position")
_LAYOUT_NUMBER = Struct("=q")


class RecordLayout:
    """How records with one set of signals are packed; a run repeats few sets."""

    def __init__(self, number: int, names: Iterable[str]) -> None:
        self.number = number
        self.names = tuple(map(str, names))
        self._struct = Struct(f"={len(_AXES)}q{len(self.names)}d")
        self._text = _text(self.names)
        axes = [(axis, np.int64) for axis in _AXES]
        self.dtype = np.dtype([*axes, ("values", np.float64, (len(self.names),))])

    def pack(
        self, step: int, tick: int, attempt: int, position: int, values: Iterable[float]
    ) -> bytes:
        """One record; raises TypeError if a value is not a number."""
        try:
            return self._struct.pack(self.number, step, tick, attempt, position, *values)
        except StructError as error:
            raise TypeError(f"signals are numbers: {error}") from error

    def line(self, packed: bytes) -> bytes:
        """The record as a line of the journal."""
        _, step, tick, attempt, position, *values = self._struct.unpack(packed)
        if isfinite(sum(values)):
            # The same text as below, in two thirds of the time.
            return frame(self._text % (step, tick, attempt, position, *values))
        return encode(
            {
                "kind": "record",
                "step": step,
                "tick": tick,
                "attempt": attempt,
                "position": position,
                "signals": dict(zip(self.names, values, strict=True)),
            }
        )


class RecordLayouts:
    """The layouts that one writer has seen."""

    def __init__(self) -> None:
        self._by_names: dict[tuple[str, ...], RecordLayout] = {}
        self._by_number: list[RecordLayout] = []

    def for_names(self, names: tuple[str, ...]) -> RecordLayout:
        """The layout for records with these signals."""
        layout = self._by_names.get(names)
        if layout is None:
            layout = self._by_names[names] = RecordLayout(len(self._by_number), names)
            self._by_number.append(layout)
        return layout

    def of_record(self, packed: bytes) -> RecordLayout:
        """The layout of a packed record."""
        number: int = _LAYOUT_NUMBER.unpack_from(packed)[0]
        return self._by_number[number]


class PackedRows:
    """The records of one segment, turned into columns when it is sealed."""

    def __init__(self) -> None:
        self._rows: dict[RecordLayout, bytearray] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, layout: RecordLayout, packed: bytes) -> None:
        """Append one record."""
        rows = self._rows.get(layout)
        if rows is None:
            rows = self._rows[layout] = bytearray()
        rows += packed
        self._length += 1

    def block(self) -> Block:
        """All records by rising tick."""
        tables = {
            layout: np.frombuffer(rows, dtype=layout.dtype) for layout, rows in self._rows.items()
        }
        axes = {axis: _joined([table[axis] for table in tables.values()]) for axis in _AXES}
        order = np.argsort(axes["tick"])
        place = np.empty_like(order)
        place[order] = np.arange(len(self))
        columns: dict[str, Column] = {}
        start = 0
        for layout, table in tables.items():
            rows, start = place[start : start + len(table)], start + len(table)
            for number, name in enumerate(layout.names):
                column = columns.setdefault(name, Column.missing(len(self)))
                column.values[rows] = table["values"][:, number]
                column.present[rows] = True
        return Block(
            step=axes["step"][order],
            tick=axes["tick"][order],
            attempt=axes["attempt"][order],
            data_position=axes["position"][order],
            columns=columns,
        )


def _text(names: tuple[str, ...]) -> str:
    """A template of the JSON line: Python's %r of a float is what its JSON encoder writes."""
    signals = ",".join(json.dumps(name).replace("%", "%%") + ":%r" for name in names)
    axes = '"kind":"record","step":%d,"tick":%d,"attempt":%d,"position":%d'
    return "{" + axes + ',"signals":{' + signals + "}}"


def _joined(arrays: list[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
