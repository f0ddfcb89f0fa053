"""What a block says, record by record and bit by bit, so that two blocks can be compared."""

import struct
import time
from collections.abc import Callable, Mapping

import numpy as np

from trimtab.core.block import Block

Row = tuple[int, int, int, dict[str, int]]
"""Step, attempt, data position, and the bits of each recorded value."""


def bits(value: float) -> int:
    """The 64 bits of a number; all NaNs are one."""
    if value != value:
        value = float("nan")
    packed: int = struct.unpack("=Q", struct.pack("=d", value))[0]
    return packed


def row(step: int, signals: Mapping[str, float], attempt: int = 0, position: int = -1) -> Row:
    return step, attempt, position, {name: bits(value) for name, value in signals.items()}


def rows_of(block: Block) -> dict[int, Row]:
    """The records of a block by tick."""
    columns = {
        name: (column.present, column.values.view(np.uint64))
        for name, column in block.columns.items()
    }
    rows = {}
    for place, tick in enumerate(block.tick.tolist()):
        recorded = {
            name: int(values[place])
            for name, (present, values) in columns.items()
            if present[place]
        }
        step, attempt = int(block.step[place]), int(block.attempt[place])
        rows[tick] = (step, attempt, int(block.data_position[place]), recorded)
    return rows


def nothing_hides_in_gaps(block: Block) -> bool:
    """Whether every value that was not recorded is NaN, as a column promises."""
    return all(np.isnan(c.values[~c.present]).all() for c in block.columns.values())


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.002)
