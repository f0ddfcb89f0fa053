"""TimeUse: what the wall time of a run went into, and how much of it was lost to instability.

Between two records the clock has moved by one step and by whatever else happened there:

    restart      the run was down, or made steps that it made again later
    checkpoint   what the step after a save took over the usual
    evaluation   what the step after an evaluation took over the usual
    data         waiting for batches (`guard.steps`)
    stalled      what a step took over the usual, if it took three times as long for no known reason
    discarded    steps that the gate discarded or that were not applied
    undone       steps that an undo took back
    in vain      steps of an incident that left the weights worse
    training     everything else

The usual is the median of the 512 records around it.

Goodput: how much of what a run did was kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, BoolArray, FloatArray
from trimtab.core.events import NOT_APPLIED, UNDO
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.signals import CLOCK, DATA_SECONDS, EVAL_LOSS
from trimtab.detect.tools.series import last_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Steps kept of steps done, and the time that the run took."""

    steps_done: int
    steps_kept: int
    """Each step counts once, by the last time it was done; not if it was then not applied, was
    discarded by the gate, was lost by an undo, or belongs to an incident that left harm."""
    hours: float | None
    """Time in which the run made steps; None if the clock was not recorded."""

    @property
    def share(self) -> float:
        return self.steps_kept / self.steps_done if self.steps_done else 0.0


PAUSE_SECONDS = 3600.0
"""A longer gap between two records means that the run was down. Source: evaluations and
checkpoints of large public runs take minutes, restarts hours."""


def compute_goodput(block: Block, incidents: Sequence[Incident] = ()) -> Goodput:
    """Compute the goodput of a run with these incidents."""
    is_lost = lost_records(block, incidents)
    # Of a step that was done several times the last one counts.
    kept = int(np.count_nonzero(~is_lost[last_rows(block.step)]))
    clock = block.column(CLOCK)
    times = clock.values[clock.finite]
    hours = None
    if len(times) > 1:
        gaps = np.diff(times)
        hours = float(gaps[(gaps > 0) & (gaps < PAUSE_SECONDS)].sum() / 3600)
    return Goodput(steps_done=len(block), steps_kept=kept, hours=hours)


def lost_records(block: Block, incidents: Sequence[Incident] = ()) -> BoolArray:
    """Return which records are of steps discarded, not applied, undone, or in vain."""
    return discarded_records(block) | undone_records(block) | vain_records(block, incidents)


HARMFUL = (
    IncidentClass.LINGERING,
    IncidentClass.COLLAPSED,
    IncidentClass.DIVERGENT,
    IncidentClass.DEAD,
)
"""Incidents whose steps have to be made again, from a checkpoint of before."""


def vain_records(block: Block, incidents: Sequence[Incident]) -> BoolArray:
    """Return which records are of an incident that left the weights worse."""
    is_vain = np.zeros(len(block), dtype=np.bool_)
    for incident in incidents:
        # A loss that is multiplied says nothing of what was learnt meanwhile.
        if incident.incident_class in HARMFUL and incident.facts.factor is None:
            last = incident.end or incident.last
            is_vain[block.row_of(incident.onset.tick) : block.row_of(last.tick + 1)] = True
    return is_vain


def discarded_records(block: Block) -> BoolArray:
    """Return which records are of steps that the gate discarded or that were not applied."""
    discarded = block.column(signals.DISCARDED)
    is_lost = discarded.present & (discarded.values > 0)
    for event in block.events:
        if event.kind == NOT_APPLIED:
            rows = np.flatnonzero(block.step == event.step)
            if len(rows):  # the event is written before the record of its step
                following = int(np.searchsorted(block.tick[rows], event.tick))
                is_lost[rows[min(following, len(rows) - 1)]] = True
    return is_lost


def undone_records(block: Block) -> BoolArray:
    """Return which records are of steps whose update an undo has taken back."""
    is_undone = np.zeros(len(block), dtype=np.bool_)
    for event in block.events:
        lost = event.facts.get("updates_lost")
        if event.kind == UNDO and isinstance(lost, int) and len(block):
            # By step: the records of the last steps are written after the event. A run that resumed
            # at an earlier step has some steps twice; the undo is of the attempt that goes on.
            attempt = block.attempt[min(block.row_of(event.tick), len(block) - 1)]
            is_lost = (block.step >= event.step - lost) & (block.step < event.step)
            is_undone |= is_lost & (block.attempt == attempt)
    return is_undone


def count_lost(incident: Incident, block: Block) -> int:
    """Count the steps that an incident cost: those that the goodput lacks because of it."""
    last = incident.end or incident.last
    first, end = block.row_of(incident.onset.tick), block.row_of(last.tick) + 1
    # An undo within the incident takes back updates of before it as well.
    undone = [
        int(event.facts.get("updates_lost", 0))
        for event in block.events
        if event.kind == UNDO and incident.onset.tick <= event.tick <= last.tick
    ]
    first = max(first - sum(undone), 0)
    near = block[first : end + 1]  # an event goes with the record after it
    is_lost = lost_records(near, [incident])[: end - first]
    # A record of a thinned log stands for the steps since the one before it, the first for itself.
    strides = np.maximum(np.diff(block.step[first:end], prepend=block.step[first:end][:1]), 1)
    return int(strides[is_lost].sum())


TRAINING, DATA, CHECKPOINT, EVALUATION = "training", "data", "checkpoint", "evaluation"
DISCARDED, UNDONE, RESTART, STALLED = "discarded", "undone", "restart", "stalled"
IN_VAIN, DONE_AGAIN = "in vain", "done again"
CAUSES = (TRAINING, DATA, CHECKPOINT, EVALUATION, DISCARDED, UNDONE, RESTART, IN_VAIN, STALLED)

INSTABILITY = (CHECKPOINT, DISCARDED, UNDONE, RESTART, IN_VAIN)
"""What instability costs a run. Source: the stability guides count checkpoints, and steps that are
discarded or done again; 5 to 10 % is usual in large runs."""

WINDOW = 512
STALL_RATIO = 3.0
"""Times the usual from which on a step has stalled. Chosen: a batch of longer sequences takes up to
twice as long."""

ROLLING = 1000
"""Newest records whose time is counted by itself."""

MAX_LAG = 16
"""Records by which one may come after the events of its step. Chosen: `live.lag_steps` is 2."""

PIECE = 128 * WINDOW
"""Records that are split at once: all of 5,000,000 would take 800 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUse:
    """Seconds of a run by cause; together they are its wall time."""

    seconds: dict[str, float]
    lost: float
    """Fraction of the time that was lost to instability."""
    lost_of_late: float
    """Fraction of the time of the last 1,000 records that was lost to instability."""

    @property
    def total(self) -> float:
        """Seconds between the first and the last record."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        shown = {
            cause: f"{100 * seconds / self.total:.1f} % {cause}"
            for cause, seconds in self.seconds.items()
            if seconds >= 0.0005 * self.total
        }
        has_sum = len(shown.keys() & INSTABILITY) > 1
        more = f"; lost in all: {100 * self.lost:.1f} %" if has_sum else ""
        return f"{', '.join(shown.values())}{more}"


def compute_time_use(block: Block, incidents: Sequence[Incident] = ()) -> TimeUse | None:
    """Split the wall time of a run; None if the clock was not recorded."""
    clock = block.column(CLOCK)
    known = np.flatnonzero(clock.finite)
    if len(known) < 3:
        return None
    times = clock.values
    if len(known) < len(block):
        times = np.interp(np.arange(len(block)), known, times[known])
    rows = _find_rows(block, incidents)
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
    return TimeUse(seconds=seconds, lost=_lost(seconds), lost_of_late=_lost(of_late))


def _find_rows(block: Block, incidents: Sequence[Incident]) -> dict[str, BoolArray]:
    """Return which records a cause explains, by cause."""
    new_process = _rows_with(block, "resume")
    new_process[1:] |= block.attempt[1:] != block.attempt[:-1]
    return {
        RESTART: new_process,
        CHECKPOINT: _rows_with(block, "checkpoint"),
        EVALUATION: _rows_with(block, "evaluation") | block.column(EVAL_LOSS).present,
        UNDONE: undone_records(block),
        DISCARDED: discarded_records(block),
        IN_VAIN: vain_records(block, incidents),
        DONE_AGAIN: _done_again(block),
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
    for cause, found in (
        (UNDONE, rows[UNDONE]),
        (DISCARDED, rows[DISCARDED]),
        (RESTART, rows[DONE_AGAIN]),
        (IN_VAIN, rows[IN_VAIN]),
    ):
        spent[cause] = spent[cause] + np.where(found, left, 0.0)
        left = np.where(found, 0.0, left)
    spent[TRAINING] = left
    return spent


def _lost(seconds: dict[str, float]) -> float:
    total = sum(seconds.values())
    return sum(seconds[cause] for cause in INSTABILITY) / total if total > 0 else 0.0


def _usual(gaps: FloatArray, skipped: int) -> FloatArray:
    """Return the median of the gaps around each one, without the first ones of a run."""
    usual = np.empty_like(gaps)
    for first in range(0, len(gaps), WINDOW):
        part = gaps[max(first, skipped) : first + WINDOW]
        usual[first : first + WINDOW] = np.median(part) if len(part) else 0.0
    return usual


def _rows_with(block: Block, kind: str) -> BoolArray:
    found = np.zeros(len(block), dtype=np.bool_)
    for event in block.events:
        if event.kind == kind:
            # A live run writes its records some steps late and its events at once.
            row = block.row_of(event.tick)
            later = np.flatnonzero(block.step[row : row + MAX_LAG] >= event.step)
            row += int(later[0]) if len(later) else 0
            found[row : row + 1] = True
    return found


def _done_again(block: Block) -> BoolArray:
    """Return the records of steps that were done again later."""
    again = np.ones(len(block), dtype=np.bool_)
    again[last_rows(block.step)] = False
    return again
