"""Observations on values that are NaN or infinite: where, and which first."""

from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence import precision
from trimtab.explain.evidence.check import CheckResult, Outcome
from trimtab.explain.evidence.observation import Seen, observation

_GUIDES = "stability guides, their first questions"


@observation("The loss is NaN or infinite", source=_GUIDES)
def loss_nonfinite(context: IncidentContext) -> Seen | None:
    """Is any loss of the incident non-finite?"""
    return _seen(precision.nonfinite_loss(context))


@observation("The gradient is non-finite while the loss is finite", source=_GUIDES)
def gradient_nonfinite_first(context: IncidentContext) -> Seen | None:
    """Does the gradient norm leave the finite numbers before the loss does?"""
    return _seen(precision.gradient_first(context))


@observation(
    "Weights or moments are non-finite before the loss", source="bit flips in a small model"
)
def state_nonfinite_first(context: IncidentContext) -> Seen | None:
    """Is a norm of weights, updates or moments non-finite at a record with a finite loss?"""
    return _seen(precision.state_first(context))


def _seen(result: CheckResult) -> Seen | None:
    if not result.outcome.is_answer:
        return None
    return Seen(result.outcome is Outcome.YES, result.observation)
