"""BlockBuilder: records one at a time in, a block out.

Records with the same signals share one packed buffer, so a long run costs 8 bytes per value and
nothing is boxed; live runs repeat very few sets of signals.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trimtab.core.block import NO_POSITION, Block, Column, Event, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was seen at one step."""

    step: int
    tick: int
    signals: Mapping[str, float]
    """Only what was recorded; a name that is absent is missing, not NaN."""
    attempt: int = 0
    data_position: int = NO_POSITION


@dataclass(slots=True)
class _Rows:
    """The rows that have the same set of signals."""

    pack: struct.Struct
    indices: list[int] = field(default_factory=list)
    packed: bytearray = field(default_factory=bytearray)


class BlockBuilder:
    """Collects records and events and turns them into one block."""

    def __init__(self) -> None:
        self._axes: list[tuple[int, int, int, int]] = []
        self._rows: dict[tuple[str, ...], _Rows] = {}
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._axes)

    def add(self, record: Record) -> None:
        """Append one record."""
        names = tuple(record.signals)
        rows = self._rows.get(names)
        if rows is None:
            rows = self._rows[names] = _Rows(struct.Struct(f"={len(names)}d"))
        rows.indices.append(len(self._axes))
        rows.packed += rows.pack.pack(*record.signals.values())
        self._axes.append((record.step, record.tick, record.attempt, record.data_position))

    def add_event(self, event: Event) -> None:
        """Append one event."""
        self._events.append(event)

    def build(self) -> Block:
        """Everything so far as one block; more records may be added afterwards."""
        axes: IntArray = np.array(self._axes, dtype=np.int64).reshape(-1, 4)
        return Block(
            step=axes[:, 0].copy(),
            tick=axes[:, 1].copy(),
            attempt=axes[:, 2].copy(),
            data_position=axes[:, 3].copy(),
            columns=self._columns(),
            events=tuple(self._events),
        )

    def _columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for names, rows in self._rows.items():
            # A copy, because a numpy view would keep the bytearray from growing afterwards.
            matrix = np.frombuffer(bytes(rows.packed)).reshape(len(rows.indices), len(names))
            for index, name in enumerate(names):
                column = columns.setdefault(name, Column.missing(len(self)))
                column.values[rows.indices] = matrix[:, index]
                column.present[rows.indices] = True
        return columns
