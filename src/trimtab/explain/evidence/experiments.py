"""Observations by experiment (docs/probes.md) and by comparison with a snapshot.

What they say about causes is by construction, not fitted. Settings only speak for a cause: a
rollback that held nothing says little, as the setting may have changed back, or a loader and not
the optimizer may be at fault.
"""

from collections.abc import Mapping
from typing import Any

from trimtab.core.signals import UPDATE_NORM
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.observation import SignalView, YesNo, observation

_SOURCE = "an experiment of the run itself: the answer is measured, not guessed"


def _answered(answer: Mapping[str, Any], yes: tuple[str, ...], no: tuple[str, ...]) -> YesNo | None:
    says = str(answer.get("answer"))
    if says not in (*yes, *no):
        return None
    return says in yes, str(answer.get("sentence", ""))


@observation("The same steps give different numbers when they are done again", source=_SOURCE)
def replay_differs(again_answer: Mapping[str, Any]) -> YesNo | None:
    """Did something come from outside of batch, state and code?"""
    return _answered(again_answer, ("hardware", "device"), ("same",))


@observation(
    "The same steps go well when the run does them again",
    source="a rollback that changed nothing: the same batches, settings and random numbers",
)
def well_again(went_well_again: bool) -> YesNo:
    """Did it stay away after a rollback without a change?"""
    text = "it has not come back" if went_well_again else "it has come back"
    return went_well_again, f"after the rollback {text}"


@observation("The same steps give different numbers each time", source=_SOURCE)
def replays_disagree(again_answer: Mapping[str, Any]) -> YesNo | None:
    """Does a device go on computing different numbers?"""
    return _answered(again_answer, ("device",), ("same", "hardware"))


@observation("An operation makes NaN or infinity of finite inputs", source=_SOURCE)
def operation_not_finite(first_nonfinite_answer: Mapping[str, Any]) -> YesNo | None:
    """Was the operation found?"""
    return _answered(first_nonfinite_answer, ("operation",), ("weights", "finite"))


@observation("An operation makes NaN or infinity of finite inputs, and not in fp16", source=_SOURCE)
def logic_not_finite(first_nonfinite_answer: Mapping[str, Any], dtype: str) -> YesNo | None:
    """Was the operation found where the range of numbers does not explain it?"""
    found = _answered(first_nonfinite_answer, ("operation",), ("weights", "finite"))
    return None if found is None else (found[0] and dtype != "fp16", found[1])


@observation("The step is finite when it is done again", source=_SOURCE)
def finite_again(first_nonfinite_answer: Mapping[str, Any]) -> YesNo | None:
    """Did a value that was not finite come from outside of batch, state and code?"""
    return _answered(first_nonfinite_answer, ("finite",), ("operation", "weights"))


@observation("The step is finite without autocast", source=_SOURCE)
def finite_in_fp32(fp32_answer: Mapping[str, Any]) -> YesNo | None:
    """Does a number leave the range of the low precision?"""
    return _answered(fp32_answer, ("precision",), ("other",))


@observation("Some sequences make the step odd by themselves", source=_SOURCE)
def sequences_at_fault(half_answer: Mapping[str, Any]) -> YesNo | None:
    """Did a bisection end at sequences?"""
    return _answered(half_answer, ("sequences",), ("none",))


@observation("The batch is odd from an earlier state too", source=_SOURCE)
def batch_at_fault(earlier_answer: Mapping[str, Any]) -> YesNo | None:
    """Is it the batch, and not the state?"""
    return _answered(earlier_answer, ("batch",), ("state",))


@observation("The next batch is odd from the same state", source=_SOURCE)
def state_at_fault(next_answer: Mapping[str, Any]) -> YesNo | None:
    """Is it the state, and not the batch?"""
    return _answered(next_answer, ("state",), ("batch",))


# Settings that differed from those of the snapshot that the run was rolled back to.

_COMPARED = "settings of the run and of its snapshot: compared, not guessed"


def _held(setting: str, held_settings: tuple[str, ...]) -> YesNo | None:
    if setting not in held_settings:
        return None
    return True, f"{setting} differed from the snapshot's, and was held at its value"


@observation("Adam's epsilon was changed", source=_COMPARED)
def epsilon_changed(held_settings: tuple[str, ...]) -> YesNo | None:
    """Was it held at the snapshot's value?"""
    return _held("eps", held_settings)


@observation("Adam's betas were changed", source=_COMPARED)
def betas_changed(held_settings: tuple[str, ...]) -> YesNo | None:
    """Were they held at the snapshot's values?"""
    return _held("betas", held_settings)


@observation("The weight decay was changed", source=_COMPARED)
def decay_changed(held_settings: tuple[str, ...]) -> YesNo | None:
    """Was it held at the snapshot's value?"""
    return _held("weight_decay", held_settings)


@observation("Parameters were excluded from training", source=_COMPARED)
def frozen_by_setting(held_settings: tuple[str, ...]) -> YesNo | None:
    """Were they included again?"""
    return _held("requires_grad", held_settings)


@observation("The learning rate was changed out of schedule", source=_COMPARED)
def rate_changed(held_settings: tuple[str, ...]) -> YesNo | None:
    """Was it held at the snapshot's value?"""
    return _held("lr", held_settings)


# What no update of the optimizer can do to the weights.

_UPDATES = 16
"""Records of the update norm that say how far a step moves the weights; also the most steps that
lie between two records of a weight norm."""

_LARGEST_UPDATE = 100.0
"""Times the usual update. Source: with beta2 = 0.999 a coordinate moves at most 32 times the
learning rate in a step of Adam, and usually 0.2 to 1 times."""


@observation("Weights move further than updates can", source="the bound of Adam's update")
def moved_from_outside(
    context: IncidentContext, param_norms: tuple[SignalView, ...], lr: SignalView
) -> YesNo | None:
    """Does a group's norm change by more than all updates since its last record could have done?"""
    rise = max(lr.ratio(float(lr.after[:2].max())), 1.0)
    found = []
    for norms in param_norms:
        group = norms.name.partition("/")[2]
        updates = context.before(f"{UPDATE_NORM}/{group}", _UPDATES)
        if len(updates) == _UPDATES and updates.max() > 0:
            moved = abs(float(norms.after[0] - norms.before[-1]))
            found.append((moved / float(updates.max()) / rise, norms.name))
    if not found:
        return None
    furthest, name = max(found)
    text = f"{name} moves as far as {furthest:.3g} of its updates"
    return furthest > _LARGEST_UPDATE * _UPDATES, text


COMPARISONS = (
    epsilon_changed,
    betas_changed,
    decay_changed,
    frozen_by_setting,
    rate_changed,
    moved_from_outside,
)
"""What compares numbers of the run with each other, and needs no experiment."""
