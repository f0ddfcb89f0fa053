"""Blocks as rows, with the names that trackers show: `trimtab/loss`, grouped by the slash."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.core.block import Block
from trimtab.core.signals import CLOCK

PREFIX = "trimtab/"
"""Distinguishes our signals from the user's metrics of the same name."""

_MAX_NAME = 200
"""Source: MLflow takes 250 characters, the strictest of the trackers."""


@dataclass(frozen=True, slots=True)
class TrackerRow:
    """One record for a tracker."""

    tick: int
    step: int
    attempt: int
    clock: float
    """Unix time in seconds, from the journal: the same whenever it is sent."""
    values: dict[str, float]
    """By tracker name."""


def tracker_rows(block: Block) -> Iterator[TrackerRow]:
    """Yield the records of a block; values that were not recorded are absent."""
    columns = [
        (tracker_name(name), column) for name, column in block.columns.items() if name != CLOCK
    ]
    clock = block.column(CLOCK).values
    for row in range(len(block)):
        yield TrackerRow(
            tick=int(block.tick[row]),
            step=int(block.step[row]),
            attempt=int(block.attempt[row]),
            clock=float(clock[row]),
            values={
                name: float(column.values[row]) for name, column in columns if column.present[row]
            },
        )


def tracker_name(signal: str) -> str:
    """Return the name of a signal in trackers, of characters that all of them accept."""
    name = re.sub(r"[^0-9A-Za-z_\-. /]", "_", signal)
    name = "/".join(part for part in name.split("/") if part.strip(". "))
    if name != signal or len(name) > _MAX_NAME:
        # Two signals must not end up under one name.
        name = f"{name[:_MAX_NAME]}_{zlib.crc32(signal.encode()):08x}"
    return PREFIX + name
