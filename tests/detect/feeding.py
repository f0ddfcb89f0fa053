"""Feeding a single detector, at once and record by record."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from trimtab.core.block import Block, Column, Event
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity
from trimtab.detect.detector_set import DetectorSet


def block(length: int, **parts: Any) -> Block:
    """A run of records; every keyword is a signal, except for the axes and events of a block."""
    names = [name for name in ("step", "attempt", "data_position", "events") if name in parts]
    axes = {"step": np.arange(length)} | {name: parts.pop(name) for name in names}
    columns = {}
    for name, values in parts.items():
        column = np.array(np.broadcast_to(values, length), dtype=np.float64)
        columns[name] = Column(column, ~np.isnan(column))
    return Block.from_columns(columns, **axes)


def at(kind: str, step: int) -> Event:
    """An event before a step."""
    return Event(kind=kind, tick=step, step=step)


def alarms(make: Callable[[], Detector], run: Block) -> list[Finding]:
    """The alarms of a detector."""
    return [item for item in findings(make, run) if item.severity is Severity.ALARM]


def findings(make: Callable[[], Detector], run: Block) -> list[Finding]:
    """What a detector finds in a whole run; it must be the same record by record."""
    whole, single = DetectorSet([make()]), DetectorSet([make()])
    found = whole.update(run)
    one_by_one: list[Finding] = []
    for place, piece in enumerate(run.cut(1)):
        one_by_one += single.update(piece)
        if place == len(run) // 2:  # saved and loaded on the way
            state = json.loads(json.dumps(single.state_dict()))
            single = DetectorSet([make()])
            single.load_state_dict(state)
    assert not whole.failures + single.failures
    assert [repr(item) for item in one_by_one] == [repr(item) for item in found]
    return found
