"""Scores: the cost of each answer compared with the best answer that was tried.

    cost  = held-out loss at the end + price of a step * steps computed after the answer
    price = half of the loss reduction per step of the healthy rest of the run

So continuing a healthy run pays, rolling back without a reason does not, and a run that no longer
learns is best stopped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.lab.practice.answers import Answer

_MIN_GAIN = 0.05
"""Smallest difference in held-out loss that is not noise: runs that differ in a few skipped batches
end within about 0.02 of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of an answer."""

    eval_loss: float
    """Held-out loss of the final weights."""

    steps: int
    """Steps computed after the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What can be gained from the last good checkpoint on."""

    loss_before: float
    """Held-out loss of that checkpoint."""

    loss_fixed: float
    """Held-out loss at the end if the cause is fixed there."""

    steps: int
    """Steps from there to the end."""

    @property
    def gain(self) -> float:
        """By how much the healthy rest of the run lowers the loss."""
        return max(self.loss_before - self.loss_fixed, _MIN_GAIN)

    @property
    def price(self) -> float:
        """The cost of a step, in held-out loss."""
        return self.gain / 2 / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The score of an answer."""

    answer: Answer
    result: Result
    score: int
    """100 is the best answer tried; 0 lost half of the possible gain or more."""


def mark(results: Mapping[Answer, Result], stakes: Stakes) -> list[Mark]:
    """All answers, the best first; among equal ones, the milder first."""
    costs = {answer: _cost(result, stakes) for answer, result in results.items()}
    best = min(costs.values())
    marks = [
        Mark(answer=answer, result=result, score=_score(costs[answer] - best, stakes))
        for answer, result in results.items()
    ]
    return sorted(marks, key=lambda one: costs[one.answer])


def _cost(result: Result, stakes: Stakes) -> float:
    # Non-finite weights are the worst result; NaN could not be compared.
    loss = result.eval_loss if math.isfinite(result.eval_loss) else math.inf
    return loss + stakes.price * result.steps


def _score(regret: float, stakes: Stakes) -> int:
    return round(100 * max(0.0, 1 - regret / (stakes.gain / 2)))
