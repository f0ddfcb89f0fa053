"""Feeding a single detector, both ways at once."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from trimtab.core.block import Block, Column, Event
from trimtab.core.findings import Finding, Severity
from trimtab.detect.ensemble import RecordDetector
from trimtab.detect.known_events import Calendar
from trimtab.detect.tools.rows import rows_of


def block(length: int, **parts: Any) -> Block:
    """A run of records; every keyword is a signal, but for the axes and events of a block."""
    names = [name for name in ("step", "attempt", "data_position", "events") if name in parts]
    axes = {"step": np.arange(length)} | {name: parts.pop(name) for name in names}
    columns = {}
    for name, values in parts.items():
        column = np.array(np.broadcast_to(values, length), dtype=np.float64)
        columns[name] = Column(column, ~np.isnan(column))
    return Block.from_columns(columns, **axes)


def at(kind: str, step: int) -> Event:
    """An event in front of a step."""
    return Event(kind=kind, tick=step, step=step)


def alarms(make: Callable[[], RecordDetector], run: Block) -> list[Finding]:
    """What a detector alarms about."""
    return [item for item in findings(make, run) if item.severity is Severity.ALARM]


def findings(make: Callable[[], RecordDetector], run: Block) -> list[Finding]:
    """What a detector finds in a whole run; it must be the same record by record."""
    whole, single = make(), make()
    calendar = Calendar()
    calendar.announce(run.events)
    found: list[Finding] = []
    begin = 0
    for row, known in calendar.sweep(run):
        if known & whole.hears:
            if row > begin:
                found += whole.sweep(run[begin:row])
            whole.hear(known)
            begin = row
    found += whole.sweep(run[begin:])
    one_by_one: list[Finding] = []
    calendar = Calendar()
    calendar.announce(run.events)
    for place, piece in enumerate(run.cut(1)):
        record = rows_of(piece)[0]
        known = calendar.take(record)
        if known & single.hears:
            single.hear(known)
        one_by_one += single.take(record)
        if place == len(run) // 2:  # saved and loaded on the way
            state = json.loads(json.dumps(single.state_dict()))
            single = make()
            single.load_state_dict(state)
    assert [repr(item) for item in one_by_one] == [repr(item) for item in found]
    return found
