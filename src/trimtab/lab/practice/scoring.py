"""Scores: what each answer cost, beside the best that was tried.

    cost  = held-out loss at the end + price of a step * steps computed after the answer
    price = half of what a healthy step of the rest of the run brings

So a healthy run is worth going on with, a checkpoint is not worth going back to for nothing, and a
run that learns nothing any more is best stopped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.lab.practice.answers import Answer

_LEAST_GAIN = 0.05
"""Held-out loss below which the rest of a run is noise: exercises that differ in a few skipped
batches end within about 0.02."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of the run."""

    eval_loss: float
    """Held-out loss of what is left at the end."""

    steps: int
    """Steps that were computed after the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What was to be had from the last good checkpoint on."""

    loss_before: float
    """Held-out loss of that checkpoint."""

    loss_mended: float
    """Held-out loss at the end if the cause had been mended there."""

    steps: int
    """Steps from there to the end."""

    @property
    def gain(self) -> float:
        """By how much the healthy rest of the run lowers the loss."""
        return max(self.loss_before - self.loss_mended, _LEAST_GAIN)

    @property
    def price(self) -> float:
        """What a step costs, in held-out loss."""
        return self.gain / 2 / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What an answer was worth."""

    answer: Answer
    result: Result
    score: int
    """100 is the best that was tried; 0 has lost half of what was to be had, or more."""


def mark(results: Mapping[Answer, Result], stakes: Stakes) -> list[Mark]:
    """All answers, the best first; of equal ones the milder."""
    costs = {answer: _cost(result, stakes) for answer, result in results.items()}
    best = min(costs.values())
    marks = [
        Mark(answer=answer, result=result, score=_score(costs[answer] - best, stakes))
        for answer, result in results.items()
    ]
    return sorted(marks, key=lambda one: costs[one.answer])


def _cost(result: Result, stakes: Stakes) -> float:
    # A run whose weights are not finite is worth nothing; NaN itself would compare with nothing.
    loss = result.eval_loss if math.isfinite(result.eval_loss) else math.inf
    return loss + stakes.price * result.steps


def _score(regret: float, stakes: Stakes) -> int:
    return round(100 * max(0.0, 1 - regret / (stakes.gain / 2)))
