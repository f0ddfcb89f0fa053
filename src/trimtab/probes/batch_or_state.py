"""earlier, next: is it the batch or the state?

earlier: the batches of the step from a state some steps earlier.
next: the batches of the following step from the same state.

Answers:
    "batch"   the step is odd with these batches wherever they are trained on
    "state"   it is odd with other batches as well, or not with these from an earlier state
    "both"    it is odd only with these batches and this state
"""

import math
from collections.abc import Generator, Sequence

from trimtab.core.robust import median, sigma_around
from trimtab.probes.passes import (
    Answer,
    Experiment,
    Original,
    Pass,
    Question,
    Result,
    StepResult,
    is_finite,
    open_answer,
)

ODD_SIGMAS = 5.0
"""Loss or logarithm of the gradient norm this far over the median of the steps before is odd.
Source: the detectors' alarm at 6, less because the step has raised one already."""

NOTHING_TO_COMPARE = "there is too little to compare with"

MIN_HEALTHY = 8
EARLIER_STEPS = 8
"""How much older the earlier state is, at least. Source: the onset is dated up to 8 steps late."""


def earlier(question: Question) -> Experiment:
    """The same batches from an earlier snapshot."""
    older = [slot for slot in question.slots if slot <= question.step - EARLIER_STEPS]
    if not older:
        return open_answer(question, "there is no snapshot that is old enough")
    return (yield from batches_from(question, older[-1]))


def next_batch(question: Question) -> Experiment:
    """The following batches from the same state."""
    positions = question.positions(question.step + 1)
    if not positions:
        return open_answer(question, "the next batches are not known")
    step = question.step
    seen = yield from look(question, Pass(first=step, last=step, positions=positions))
    if seen is None:
        return open_answer(question, NOTHING_TO_COMPARE)
    found, is_odd = seen
    return Answer(
        experiment=question.experiment,
        says="state" if is_odd else "batch",
        sentence=f"with the batches of step {step + 1} step {step} is "
        f"{'' if is_odd else 'not '}odd ({_numbers(found)})",
        facts={"loss": found.loss, "grad_norm": found.grad_norm},
    )


def batches_from(question: Question, slot: int) -> Experiment:
    """The batches of the step from the state of a snapshot."""
    positions = question.positions(question.step)
    if not positions:
        return open_answer(question, "the batches of the step are not known")
    seen = yield from look(question, Pass(first=slot, last=slot, positions=positions))
    if seen is None:
        return open_answer(question, NOTHING_TO_COMPARE)
    found, is_odd = seen
    return Answer(
        experiment=question.experiment,
        says="batch" if is_odd else "state",
        sentence=f"the batches of step {question.step} are {'' if is_odd else 'not '}odd from the "
        f"state of step {slot} ({_numbers(found)})",
        facts={"state_of": slot, "loss": found.loss, "grad_norm": found.grad_norm},
    )


def look(
    question: Question, wanted: Pass
) -> Generator[Pass, Result, tuple[StepResult, bool] | None]:
    """The last step of a pass and whether it is odd; None if there is too little to compare."""
    found, scale = (yield wanted).last, Scale.of(question)
    return None if found is None or scale is None else (found, scale.is_odd(found))


class Scale:
    """What is usual before the step in question."""

    def __init__(self, healthy: Sequence[Original | StepResult]) -> None:
        self.loss, self.loss_sigma = robust([one.loss or 0.0 for one in healthy])
        norms = [math.log(max(one.grad_norm or 0.0, 1e-30)) for one in healthy]
        self.norm, self.norm_sigma = robust(norms)

    @classmethod
    def of(cls, question: Question) -> "Scale | None":
        """The scale of a question; None if too few steps are known."""
        healthy = question.healthy()
        return cls(healthy) if len(healthy) >= MIN_HEALTHY else None

    def is_odd(self, found: StepResult | Original) -> bool:
        """Whether a step is unlike those before."""
        return self.score(found) > ODD_SIGMAS

    def score(self, found: StepResult | Original) -> float:
        """How many sigmas loss or gradient norm are over the usual."""
        was_skipped = isinstance(found, StepResult) and found.was_skipped
        if was_skipped or not is_finite(found.loss) or not is_finite(found.grad_norm):
            return math.inf
        loss = ((found.loss or 0.0) - self.loss) / self.loss_sigma
        norm = (math.log(max(found.grad_norm or 0.0, 1e-30)) - self.norm) / self.norm_sigma
        return max(loss, norm)


def robust(values: Sequence[float]) -> tuple[float, float]:
    """Median and deviation that a few outliers do not move."""
    middle = median(values)
    return middle, max(sigma_around(middle, values), 1e-3)


def _numbers(found: StepResult) -> str:
    loss = "no loss" if found.loss is None else f"loss {found.loss:.4g}"
    return loss if found.grad_norm is None else f"{loss}, gradient norm {found.grad_norm:.4g}"
