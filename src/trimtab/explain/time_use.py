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

PIECE = 128 * WINDOW
"""Records that are split at once: all of 5,000,000 would take 800 MB."""

IN_VAIN = "in vain"


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
    times = clock.values
    if len(known) < len(block):
        times = np.interp(np.arange(len(block)), known, times[known])
    rows = _find_rows(block)
    data = block.column(DATA_SECONDS)
    seconds, of_late = dict.fromkeys(CAUSES, 0.0), dict.fromkeys(CAUSES, 0.0)
    late = len(block) - ROLLING
    for first in range(0, len(block), PIECE):
        part = slice(first, first + PIECE)
        gaps = np.maximum(np.diff(times[part], prepend=times[max(first - 1, 0)]), 0.0)
        waited = np.where(data.finite[part], np.maximum(data.values[part], 0.0), 0.0)
        usual = _usual(gaps, skipped=1 if first == 0 else 0)
        spent = _split(gaps, usual, waited, {cause: found[part] for cause, found in rows.items()})
        for cause in CAUSES:
            seconds[cause] += float(spent[cause].sum())
            of_late[cause] += float(spent[cause][max(late - first, 0) :].sum())
    if not sum(seconds.values()) > 0:
        return None
    return TimeUse(seconds=seconds, tax=_tax(seconds), tax_of_late=_tax(of_late))


def _find_rows(block: Block) -> dict[str, BoolArray]:
    """Return which records a cause explains, by cause; IN_VAIN are those that did not last."""
    new_process = _rows_with(block, "resume")
    new_process[1:] |= block.attempt[1:] != block.attempt[:-1]
    return {
        RESTART: new_process,
        CHECKPOINT: _rows_with(block, "checkpoint"),
        EVALUATION: _rows_with(block, "evaluation") | block.column(EVAL_LOSS).present,
        UNDONE: undone_records(block),
        DISCARDED: discarded_records(block),
        IN_VAIN: _done_again(block) | lost_records(block),
    }


def _split(
    gaps: FloatArray, usual: FloatArray, waited: FloatArray, rows: dict[str, BoolArray]
) -> dict[str, FloatArray]:
    """Split the seconds before each record by cause."""
    excess = np.maximum(gaps - usual, 0.0)
    spent = dict.fromkeys(CAUSES, np.zeros(len(gaps)))
    left = gaps
    for cause, found, limit in (
        (RESTART, rows[RESTART], math.inf),
        (CHECKPOINT, rows[CHECKPOINT], math.inf),
        (EVALUATION, rows[EVALUATION], math.inf),
        (DATA, waited > 0, np.minimum(waited, gaps)),
        (STALLED, gaps > STALL_RATIO * usual, math.inf),
    ):
        most = left if cause == DATA else excess
        spent[cause] = np.where(found, np.minimum(most, limit), 0.0)
        left = left - spent[cause]
        excess = np.maximum(excess - spent[cause], 0.0)
    # What is left are the steps themselves.
    for cause, which in ((UNDONE, UNDONE), (DISCARDED, DISCARDED), (RESTART, IN_VAIN)):
        spent[cause] = spent[cause] + np.where(rows[which], left, 0.0)
        left = np.where(rows[which], 0.0, left)
    spent[TRAINING] = left
    return spent


def _tax(seconds: dict[str, float]) -> float:
    total = sum(seconds.values())
    return sum(seconds[cause] for cause in TAX) / total if total > 0 else 0.0


def _usual(gaps: FloatArray, skipped: int) -> FloatArray:
    """Return the median of the gaps around each one, without the first ones of a run."""
    usual = np.empty_like(gaps)
    for first in range(0, len(gaps), WINDOW):
        part = gaps[max(first, skipped) : first + WINDOW]
        usual[first : first + WINDOW] = np.median(part) if len(part) else 0.0
    return usual


def _rows_with(block: Block, kind: str) -> BoolArray:
    found = np.zeros(len(block), dtype=np.bool_)
    rows = [block.row_of(event.tick) for event in block.events if event.kind == kind]
    found[[row for row in rows if row < len(block)]] = True
    return found


def _done_again(block: Block) -> BoolArray:
    """Return the records of steps that were done again later."""
    if (block.step[1:] > block.step[:-1]).all():
        return np.zeros(len(block), dtype=np.bool_)
    again = np.ones(len(block), dtype=np.bool_)
    _, last = np.unique(block.step[::-1], return_index=True)
    again[len(block) - 1 - last] = False
    return again
