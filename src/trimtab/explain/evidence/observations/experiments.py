"""Observations by experiment: what steps that were done again have shown (docs/probes.md)."""

from collections.abc import Mapping
from typing import Any

from trimtab.explain.evidence.observation import Seen, observation

_SOURCE = "an experiment of the run itself: the answer is measured, not guessed"


def _seen(answer: Mapping[str, Any], yes: tuple[str, ...], no: tuple[str, ...]) -> Seen | None:
    says = str(answer.get("answer"))
    if says not in (*yes, *no):
        return None
    return Seen(says in yes, str(answer.get("sentence", "")))


@observation("The same steps give different numbers when they are done again", source=_SOURCE)
def replay_differs(again_answer: Mapping[str, Any]) -> Seen | None:
    """Did something come from outside of batch, state and code?"""
    return _seen(again_answer, ("hardware", "device"), ("same",))


@observation(
    "The same steps go well when the run does them again",
    source="a rollback that changed nothing: the same batches, settings and random numbers",
)
def well_again(went_well_again: bool) -> Seen:
    """Did it stay away after a rollback without a change?"""
    text = "it has not come back" if went_well_again else "it has come back"
    return Seen(went_well_again, f"after the rollback {text}")


@observation("The same steps give different numbers each time", source=_SOURCE)
def replays_disagree(again_answer: Mapping[str, Any]) -> Seen | None:
    """Does a device go on computing different numbers?"""
    return _seen(again_answer, ("device",), ("same", "hardware"))


@observation("An operation makes NaN or infinity of finite inputs", source=_SOURCE)
def operation_not_finite(first_nonfinite_answer: Mapping[str, Any]) -> Seen | None:
    """Was the operation found?"""
    return _seen(first_nonfinite_answer, ("operation",), ("weights", "finite"))


@observation("An operation makes NaN or infinity of finite inputs, and not in fp16", source=_SOURCE)
def logic_not_finite(first_nonfinite_answer: Mapping[str, Any], dtype: str) -> Seen | None:
    """Was the operation found where the range of numbers does not explain it?"""
    seen = _seen(first_nonfinite_answer, ("operation",), ("weights", "finite"))
    return None if seen is None else Seen(seen.yes and dtype != "fp16", seen.text)


@observation("The step is finite when it is done again", source=_SOURCE)
def finite_again(first_nonfinite_answer: Mapping[str, Any]) -> Seen | None:
    """Did a value that was not finite come from outside of batch, state and code?"""
    return _seen(first_nonfinite_answer, ("finite",), ("operation", "weights"))


@observation("The step is finite without autocast", source=_SOURCE)
def finite_in_fp32(fp32_answer: Mapping[str, Any]) -> Seen | None:
    """Does a number leave the range of the low precision?"""
    return _seen(fp32_answer, ("precision",), ("other",))


@observation("Some sequences make the step odd by themselves", source=_SOURCE)
def sequences_at_fault(half_answer: Mapping[str, Any]) -> Seen | None:
    """Did a bisection end at sequences?"""
    return _seen(half_answer, ("sequences",), ("none",))


@observation("The batch is odd from an earlier state too", source=_SOURCE)
def batch_at_fault(earlier_answer: Mapping[str, Any]) -> Seen | None:
    """Is it the batch, and not the state?"""
    return _seen(earlier_answer, ("batch",), ("state",))


@observation("The next batch is odd from the same state", source=_SOURCE)
def state_at_fault(next_answer: Mapping[str, Any]) -> Seen | None:
    """Is it the state, and not the batch?"""
    return _seen(next_answer, ("state",), ("batch",))
