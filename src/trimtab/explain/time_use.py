"""TimeUse: what the wall time of a run went into, by cause, and the share that stability costs.

Between two records the clock has moved by one step and by whatever else happened there:

    restart      the run was down, or made steps that it made again later, or trained in vain
    checkpoint   what the step with a save took over the usual
    evaluation   the same, with an evaluation
    data         waiting for batches (`guard.steps`)
    stalled      what a step took over the usual, if it took three times as long for no known reason
    discarded    steps that the gate discarded or that were not applied
    undone       steps that an undo took back
    training     everything else

The usual is the median of the 512 records around it.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block, BoolArray, FloatArray
from trimtab.core.signals import CLOCK, DATA_SECONDS, EVAL_LOSS
from trimtab.explain.goodput import discarded_records, lost_records, undone_records

TRAINING, DATA, CHECKPOINT, EVALUATION = "training", "data", "checkpoint", "evaluation"
DISCARDED, UNDONE, RESTART, STALLED = "discarded", "undone", "restart", "stalled"
CAUSES = (TRAINING, DATA, CHECKPOINT, EVALUATION, DISCARDED, UNDONE, RESTART, STALLED)

TAX = (CHECKPOINT, DISCARDED, UNDONE, RESTART)
"""What a run pays for its stability. Source: the stability guides count checkpoints, and steps that
are discarded or done again; 5 to 10 % is usual in large runs."""

WINDOW = 512
STALL_RATIO = 3.0
"""Times the usual from which on a step has stalled. Chosen: a batch of longer sequences takes up to
twice as long."""

ROLLING = 1000
"""Records of the tax of late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUse:
    """Seconds of a run by cause; together they are its wall time."""

    seconds: dict[str, float]
    tax: float
    """The share of the time that stability costs."""
    tax_of_late: float
    """The same, of the last 1,000 records."""

    @property
    def total(self) -> float:
        """Seconds between the first and the last record."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        parts = [
            f"{100 * seconds / self.total:.1f} % {cause}"
            for cause, seconds in self.seconds.items()
            if seconds >= 0.0005 * self.total
        ]
        return f"{', '.join(parts)}; stability tax {100 * self.tax:.1f} %"


def compute_time_use(block: Block) -> TimeUse | None:
    """Split the wall time of a run; None if the clock was not recorded."""
    clock = block.column(CLOCK)
    known = np.flatnonzero(clock.finite)
    if len(known) < 3:
        return None
    times = np.interp(np.arange(len(block)), known, clock.values[known])
    gaps = np.maximum(np.diff(times, prepend=times[0]), 0.0)
    usual = _usual(gaps)
    excess = np.maximum(gaps - usual, 0.0)
    data = block.column(DATA_SECONDS)
    waited = np.minimum(np.where(data.finite, np.maximum(data.values, 0.0), 0.0), gaps)
    spent = dict.fromkeys(CAUSES, np.zeros(len(block)))
    left = gaps.copy()
    eval_rows = _rows_with(block, "evaluation") | block.column(EVAL_LOSS).present
    new_process = _rows_with(block, "resume")
    new_process[1:] |= block.attempt[1:] != block.attempt[:-1]
    for cause, rows, limit in (
        (RESTART, new_process, math.inf),
        (CHECKPOINT, _rows_with(block, "checkpoint"), math.inf),
        (EVALUATION, eval_rows, math.inf),
        (DATA, waited > 0, waited),
        (STALLED, gaps > STALL_RATIO * usual, math.inf),
    ):
        most = left if cause == DATA else excess
        spent[cause] = np.where(rows, np.minimum(most, limit), 0.0)
        left = left - spent[cause]
        excess = np.maximum(excess - spent[cause], 0.0)
    # What is left are the steps themselves.
    undone, discarded = undone_records(block), discarded_records(block)
    in_vain = _done_again(block) | lost_records(block)
    for cause, rows in ((UNDONE, undone), (DISCARDED, discarded), (RESTART, in_vain)):
        spent[cause] = spent[cause] + np.where(rows, left, 0.0)
        left = np.where(rows, 0.0, left)
    spent[TRAINING] = left
    if not gaps.sum() > 0:
        return None
    return TimeUse(
        seconds={cause: float(spent[cause].sum()) for cause in CAUSES},
        tax=_tax(spent, gaps, 0),
        tax_of_late=_tax(spent, gaps, -ROLLING),
    )


def _tax(spent: dict[str, FloatArray], gaps: FloatArray, first: int) -> float:
    total = float(gaps[first:].sum())
    return sum(float(spent[cause][first:].sum()) for cause in TAX) / total if total > 0 else 0.0


def _usual(gaps: FloatArray) -> FloatArray:
    """Return the median of the gaps around each one."""
    usual = np.empty_like(gaps)
    for first in range(0, len(gaps), WINDOW):
        part = gaps[max(first, 1) : first + WINDOW]
        usual[first : first + WINDOW] = np.median(part) if len(part) else 0.0
    return usual


def _rows_with(block: Block, kind: str) -> BoolArray:
    """Return the records before which an event happened."""
    found = np.zeros(len(block), dtype=np.bool_)
    rows = [block.row_of(event.tick) for event in block.events if event.kind == kind]
    found[[row for row in rows if row < len(block)]] = True
    return found


def _done_again(block: Block) -> BoolArray:
    """Return the records of steps that were done again later."""
    again = np.ones(len(block), dtype=np.bool_)
    _, last = np.unique(block.step[::-1], return_index=True)
    again[len(block) - 1 - last] = False
    return again
