"""Goodput: how much of what a run did was kept."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block
from trimtab.core.signals import CLOCK, DISCARDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Steps kept of steps done, and what the run took."""

    steps_done: int
    steps_kept: int
    """Without those done again after the run went back, those that were not applied, and those
    that the gate has discarded."""
    hours: float | None
    """Time in which the run made steps; None if the clock was not recorded."""

    @property
    def share(self) -> float:
        """The share of steps that was kept."""
        return self.steps_kept / self.steps_done if self.steps_done else 0.0


PAUSE_SECONDS = 3600.0
"""A longer gap between two records is a run that was down, not a step. Source: evaluations and
checkpoints of large public runs take minutes, restarts hours."""


def compute_goodput(block: Block) -> Goodput:
    """The goodput of a run."""
    not_applied = {event.step for event in block.events if event.kind == "step not applied"}
    discarded = block.column(DISCARDED)
    is_lost = discarded.present & (discarded.values > 0)
    # Of a step that was done several times the last one counts.
    last = dict(zip(block.step.tolist(), is_lost.tolist(), strict=True))
    kept = {step for step, lost in last.items() if not lost} - not_applied
    clock = block.column(CLOCK)
    times = clock.values[clock.finite]
    hours = None
    if len(times) > 1:
        gaps = np.diff(times)
        hours = float(gaps[(gaps > 0) & (gaps < PAUSE_SECONDS)].sum() / 3600)
    return Goodput(steps_done=len(block), steps_kept=len(kept), hours=hours)
