"""Observations on the learning rate, and on where in the run the incident begins."""

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.explain.evidence import spike
from trimtab.explain.evidence.check import number
from trimtab.explain.evidence.observation import Seen, observation
from trimtab.explain.evidence.signal_view import SignalView

EARLY_RECORDS, EARLY_STEPS = 150, 4000
"""An incident this soon after the start of a run has no healthy past. Source: a learning rate that
is too high shows in or shortly after the warm-up, which takes about 2,000 steps in published runs
and 50 in the lab."""

RATES = 1e-30, 1e30
"""Learning rates outside count as these: the ratio of two damaged values must stay finite."""


@observation(
    "The learning rate jumps",
    source="over 1.2 times in a step: published diagnoses",
    symptoms=(Symptom.LR_JUMP,),
)
def lr_jumped(lr: SignalView) -> Seen:
    """Is one change near the onset far larger than those before?"""
    values = np.concatenate((lr.before, lr.after[:4]))
    moves = np.abs(np.diff(np.log(np.clip(values, *RATES))))
    near, earlier = moves[-6:], moves[:-6]
    usual = float(np.median(earlier)) if len(earlier) else 0.0
    largest = float(near.max())
    text = f"largest change of the learning rate in a record: {np.exp(largest):.3g} times"
    return Seen(largest > np.log(spike.LR_JUMP) and largest > 3 * usual, text)


@observation(
    "The learning rate turns up in its decay",
    source="inverted cosine: stability guides",
    symptoms=(Symptom.LR_RISING,),
)
def lr_turned_up(lr: SignalView) -> Seen | None:
    """Did the rate fall before, and does it rise after?"""
    if len(lr.after) < 8:
        return None
    top = int(np.argmax(lr.before))
    lowest = float(lr.before[top:].min())
    fell = lowest < 0.999 * float(lr.before[top])
    rises = float(np.median(np.diff(lr.after))) > 0
    text = f"learning rate {number(float(lr.before[top]))} -> {number(lowest)} -> "
    return Seen(fell and rises, text + number(float(lr.after[-1])))


@observation(
    "The incident begins early in the run, or the run never learned",
    source="LR too high shows in the warm-up",
    symptoms=(Symptom.NO_LEARNING,),
    opening=True,
)
def early(onset_row: int, onset_step: int) -> Seen:
    """Is the onset among the first records and steps of the run?"""
    is_early = onset_row < EARLY_RECORDS and onset_step < EARLY_STEPS
    return Seen(is_early, f"step {onset_step}, {onset_row} records before it")


@observation(
    "The run has learned nothing",
    source="loss at the entropy of single tokens",
    symptoms=(Symptom.NO_LEARNING,),
    opening=True,
)
def never_learned(loss: SignalView) -> Seen:
    """Did the incident open because the loss never left its start, not for something sudden?"""
    return Seen(False, f"loss {number(loss.usual)} before, {number(float(loss.after[0]))} now")
