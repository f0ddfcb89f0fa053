"""One run with all that makes logs hard, and what a reader has to find in it.

NaN, both infinities, a gap in the steps, a value missing at one step, and a restart that repeats
steps. All numbers are exact in float32, which is what TensorBoard keeps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block

NAMES = ("loss", "grad_norm", "lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record."""

    step: int
    loss: float
    grad_norm: float | None
    lr: float
    attempt: int = 0

    def values(self) -> dict[str, float]:
        """What is logged."""
        signals = {"loss": self.loss, "grad_norm": self.grad_norm, "lr": self.lr}
        return {name: value for name, value in signals.items() if value is not None}


def _row(step: int, attempt: int) -> Row:
    strange = {6: math.nan, 7: math.inf, 8: -math.inf} if attempt == 0 else {}
    return Row(
        step=step,
        loss=strange.get(step, 4.0 - step / 16 + attempt / 64),
        grad_norm=None if step == 13 else 1.0 + step / 4,
        lr=2.0**-10 * (1 + step),
        attempt=attempt,
    )


FIRST = [_row(step, 0) for step in range(20) if step not in (10, 11)]
SECOND = [_row(step, 1) for step in range(15, 25)]
ROWS = [*FIRST, *SECOND]


def assert_reads_back(block: Block, rows: Sequence[Row]) -> None:
    """The block holds exactly these rows, missing and non-finite values included."""
    assert block.step.tolist() == [row.step for row in rows]
    assert block.attempt.tolist() == [row.attempt - rows[0].attempt for row in rows]
    for name in NAMES:
        wanted = [row.values().get(name) for row in rows]
        column = block.column(name)
        assert column.present.tolist() == [value is not None for value in wanted], name
        numbers = [math.nan if value is None else value for value in wanted]
        np.testing.assert_array_equal(column.values, numbers, err_msg=name)
