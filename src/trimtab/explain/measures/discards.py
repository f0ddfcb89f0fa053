"""Discards: the steps whose update a protected run kept from its weights."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block
from trimtab.core.signals import DISCARDED

_MAX_STRETCHES = 6
"""Listed one by one; in a run with more, the places hardly matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discards:
    """How many steps were discarded, and where."""

    count: int
    stretches: tuple[tuple[int, int], ...]
    """First and last step of each unbroken series of them."""

    def where(self) -> str:
        """The steps as text: `117 to 120, 203 and 2 more places`."""
        shown = [
            f"{first:,}" if first == last else f"{first:,} to {last:,}"
            for first, last in self.stretches[:_MAX_STRETCHES]
        ]
        more = len(self.stretches) - len(shown)
        return ", ".join(shown) + (f" and {more:,} more places" if more else "")


def compute_discards(block: Block) -> Discards | None:
    """What was discarded in these records; None if the run was not protected."""
    column = block.column(DISCARDED)
    if not column.recorded:
        return None
    rows = np.flatnonzero(column.present & (column.values > 0))
    # By rows, not steps: after a rollback the same step may be discarded twice.
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    return Discards(
        count=len(rows),
        stretches=tuple(
            (int(block.step[part[0]]), int(block.step[part[-1]]))
            for part in np.split(rows, breaks)
            if len(part)
        ),
    )
