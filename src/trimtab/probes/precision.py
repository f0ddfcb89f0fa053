"""fp32: the same step without autocast.

Answers:
    "precision"   it is finite without autocast: a number has left the range of the low precision
    "other"       it is not finite in fp32 either
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trimtab.probes.passes import Answer, Experiment, Pass, Question, open_answer


@contextmanager
def without_autocast() -> Iterator[None]:
    """Every `torch.autocast` that is entered in here is disabled."""
    enter: Any = torch.autocast.__enter__

    def disabled(self: Any) -> Any:
        was_enabled, self._enabled = self._enabled, False
        try:
            return enter(self)
        finally:
            self._enabled = was_enabled

    torch.autocast.__enter__ = disabled  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def fp32(question: Question) -> Experiment:
    """Do the step as it was, then without autocast."""
    step = question.step
    usual = (yield Pass(first=step, last=step)).last
    whole = (yield Pass(first=step, last=step, starts_at_step=True, without_autocast=True)).last
    if usual is None or whole is None:
        return open_answer(question, "the step was not done again")
    facts = {"loss": usual.loss, "loss_in_fp32": whole.loss}
    if usual.is_finite:
        return Answer(
            experiment=question.experiment,
            says="open",
            sentence=f"step {step} is finite when it is done again",
            facts=facts,
        )
    in_range = whole.is_finite
    return Answer(
        experiment=question.experiment,
        says="precision" if in_range else "other",
        sentence=f"without autocast step {step} is "
        + ("finite: a number leaves the range of the low precision" if in_range else "not finite"),
        facts=facts,
    )
