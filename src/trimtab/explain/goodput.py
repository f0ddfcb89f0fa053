"""Goodput: how much of what a run did was kept."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block, BoolArray, Event, IntArray
from trimtab.core.events import NOT_APPLIED, UNDO
from trimtab.core.incidents import Incident
from trimtab.core.signals import CLOCK, DISCARDED, LOSS


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Steps kept of steps done, and the time that the run took."""

    steps_done: int
    steps_kept: int
    """Each step counts once, by the last time it was done; not if it was then not applied, was
    discarded by the gate, was lost by an undo, or was done with destroyed weights."""
    hours: float | None
    """Time in which the run made steps; None if the clock was not recorded."""

    @property
    def share(self) -> float:
        return self.steps_kept / self.steps_done if self.steps_done else 0.0


PAUSE_SECONDS = 3600.0
"""A longer gap between two records means that the run was down. Source: evaluations and
checkpoints of large public runs take minutes, restarts hours."""


def compute_goodput(block: Block) -> Goodput:
    """Compute the goodput of a run."""
    is_lost = lost_records(block)
    kept = int(np.count_nonzero(~is_lost))
    if not (block.step[1:] > block.step[:-1]).all():
        # Of a step that was done several times the last one counts.
        _, last = np.unique(block.step[::-1], return_index=True)
        kept = int(np.count_nonzero(~is_lost[::-1][last]))
    clock = block.column(CLOCK)
    times = clock.values[clock.finite]
    hours = None
    if len(times) > 1:
        gaps = np.diff(times)
        hours = float(gaps[(gaps > 0) & (gaps < PAUSE_SECONDS)].sum() / 3600)
    return Goodput(steps_done=len(block), steps_kept=kept, hours=hours)


def lost_records(block: Block) -> BoolArray:
    """Return which records are of steps discarded, not applied, undone, or in vain."""
    not_kept = discarded_records(block) | undone_records(block)
    return not_kept | _done_with_destroyed_weights(block)


def discarded_records(block: Block) -> BoolArray:
    """Return which records are of steps that the gate discarded or that were not applied."""
    discarded = block.column(DISCARDED)
    is_lost = discarded.present & (discarded.values > 0)
    for event in block.events:
        if event.kind == NOT_APPLIED:
            rows = np.flatnonzero(block.step == event.step)
            if len(rows):  # the event is written before the record of its step
                following = int(np.searchsorted(block.tick[rows], event.tick))
                is_lost[rows[min(following, len(rows) - 1)]] = True
    return is_lost


def undone_records(block: Block) -> BoolArray:
    is_undone = np.zeros(len(block), dtype=np.bool_)
    for event in block.events:
        if event.kind == UNDO:
            is_undone |= _undone(block, event)
    return is_undone


def count_lost(incident: Incident, block: Block) -> int:
    """Count the steps that an incident cost: those that the goodput lacks because of it."""
    first, end = block.row_of(incident.onset.tick), block.row_of(incident.last.tick) + 1
    is_lost = lost_records(block[first : end + 1])  # an event goes with the record after it
    return int(np.count_nonzero(is_lost[: end - first]))


def _undone(block: Block, event: Event) -> BoolArray:
    """Return the records whose update an undo has taken back."""
    lost = event.facts.get("updates_lost")
    if not isinstance(lost, int) or not len(block):
        return np.zeros(len(block), dtype=np.bool_)
    # By step: the records of the last steps are written after the event. A run that resumed at an
    # earlier step has some steps twice; the undo is of the attempt that goes on after it.
    attempt = block.attempt[min(block.row_of(event.tick), len(block) - 1)]
    is_undone = (block.step >= event.step - lost) & (block.step < event.step)
    return np.asarray(is_undone & (block.attempt == attempt), dtype=np.bool_)


def _done_with_destroyed_weights(block: Block) -> BoolArray:
    """Find the steps after which no loss of an attempt is finite any more.

    A loss that is not finite once is a bad batch. One that stays so until the attempt ends is a
    NaN in the weights: what was trained from there on is lost.
    """
    loss = block.column(LOSS)
    finite = loss.finite
    found = np.zeros(len(block), dtype=bool)
    for attempt in _attempts(block):  # masks: a long run has millions of rows
        vain = (block.attempt == attempt) & loss.present
        healthy = vain & finite
        if healthy.any():
            vain[: len(vain) - int(healthy[::-1].argmax())] = False
        # One bad loss at the very end may still be a bad batch.
        if np.count_nonzero(vain) > 1:
            found |= vain
    return found


def _attempts(block: Block) -> IntArray:
    if len(block) and block.attempt.min() == block.attempt.max():
        return block.attempt[:1]
    return np.unique(block.attempt)
