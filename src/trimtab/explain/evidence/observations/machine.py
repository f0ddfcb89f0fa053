"""Observations on precision, time and ranks."""

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.signals import LOSS_SCALE
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.check import counted, number
from trimtab.explain.evidence.observation import Seen, observation
from trimtab.explain.evidence.signal_view import SignalView


@observation(
    "The loss scale never moves",
    source="a dynamic scale grows every 2,000 steps",
    symptoms=(Symptom.SCALE_FROZEN,),
)
def scale_frozen(loss_scale: SignalView) -> Seen:
    """Does a detector report a constant scale?"""
    return Seen(False, "the loss scale moves")


@observation("The run is fp16", source="bf16 and fp32 have the range that fp16 lacks")
def half_precision(dtype: str) -> Seen:
    """Is the regime fp16?"""
    return Seen(dtype == "fp16", f"the run is {dtype}")


@observation(
    "The loss scale falls",
    source="3 halvings in 100 steps: detection survey",
    symptoms=(Symptom.SCALE_COLLAPSE, Symptom.OVERFLOWS),
)
def scale_fell(loss_scale: SignalView, context: IncidentContext) -> Seen:
    """Is the loss scale halved at least three times while the incident is open?"""
    scale = context.during(LOSS_SCALE)
    lowest = float(scale.values[scale.finite].min())
    highest = float(loss_scale.before.max())
    return Seen(lowest <= highest / 8, f"loss scale {number(highest)} -> {number(lowest)}")


@observation(
    "A stalled step opens the incident",
    source="detector of stalled steps; steps of a shared machine stall in any incident",
    symptoms=(Symptom.STALL,),
    opening=True,
)
def stalls(step_seconds: SignalView) -> Seen:
    """Is a stall what the incident began with?"""
    return Seen(False, f"a step takes {number(step_seconds.usual)} s")


@observation(
    "Slower steps open the incident",
    source="detector of the throughput",
    symptoms=(Symptom.SLOW,),
    opening=True,
)
def slower(step_seconds: SignalView) -> Seen:
    """Is a lower throughput what the incident began with?"""
    return Seen(False, f"a step takes {number(step_seconds.usual)} s")


@observation("Slow steps wait for data", source="data-wait share: detection survey")
def waits_for_data(data_seconds: SignalView, step_seconds: SignalView) -> Seen:
    """Does the longest step spend its time waiting for data?"""
    data = np.concatenate((data_seconds.before[-16:], data_seconds.after[:16]))
    steps = np.concatenate((step_seconds.before[-16:], step_seconds.after[:16]))
    longest = float(data.max())
    share = longest / max(float(steps.max()), 1e-9)
    return Seen(longest > 10 * data_seconds.usual and share > 0.5, f"waits {number(longest)} s")


@observation("Several ranks train together", source="one process cannot be out of step with itself")
def several_ranks(ranks: int) -> Seen:
    """Is there more than one process?"""
    return Seen(ranks > 1, counted(ranks, "rank"))
