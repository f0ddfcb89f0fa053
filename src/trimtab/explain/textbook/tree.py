"""The textbook decision tree: its questions and its leaves.

    1.1 loss non-finite? --yes--> 1.2 fp16? --yes--> 3.2
         | no                        | no --> 1.3 gradient first? --> destructive update
    1.1b a norm non-finite? --yes--> corrupted state
         | no
    2.1 spike? --yes--> 2.2 back in 50? --yes--> 2.3a norm 30x? 2.3b LR jump? 2.3c same batch?
         | no                  | no --> persistent
    3.0 fp16 or bf16? --yes--> 3.1 gradient norm non-finite? --yes--> 3.2 scale collapsed? constant?
         | no                       | no --> 3.1b scale collapsed?
         |                               | no
    4.1 loss risen 200 times? --yes--> 4.2 LR rising? 4.3 weight norm 2x? 4.4 gradient rising?
         | no --> healthy

A question whose signal was not recorded says so and takes the "no" branch. The questions with a "b"
are ours: the textbook's threshold table has a collapsed scale as a separate symptom, and here a
non-finite norm is seen before the loss shows it. Each question is a check on the records around an
incident.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from trimtab.core.causes import Cause
from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.core.robust import mean_and_deviation
from trimtab.core.signals import (
    FINGERPRINT,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    PARAM_NORM,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
)
from trimtab.core.text import digits
from trimtab.explain.causes.conclusions import Conclusion
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.checks import (
    IncidentCheck,
    Observed,
    answered,
    gradient_first,
    nonfinite_loss,
    state_norms,
    unrecorded,
)
from trimtab.explain.evidence.curves import LR_JUMP

ODD_TOKENS_SIGMAS = 6.0
"""A batch whose rarity or share of distinct tokens is further off than this is odd. Source: robust
scores of healthy public runs stay under 4.5; batches of rare or repeated tokens in small models
moved these two by 10 deviations and more."""

_RECOVERED = (IncidentClass.RECOVERED,)

_USUAL_RECORDS = 20
_USUAL_FACTOR = 3.0


# Non-finite values: norms, precision, the loss scale.


def nonfinite_norm(context: IncidentContext) -> Observed:
    """Is a weight, update or optimizer norm NaN or infinite?"""
    first = context.first_finding(Symptom.NONFINITE_NORM)
    if first is not None:
        return answered(first.signal, True, f"{first.signal} is {first.value} at step {first.step}")
    norms = state_norms(context)
    if not norms:
        return unrecorded(PARAM_NORM, "weight, update and optimizer norms not recorded")
    return answered(norms[0], False, f"{', '.join(norms)} finite")


def is_half_precision(context: IncidentContext) -> Observed:
    """Was the run in fp16?"""
    if context.facts.dtype is not None:
        return answered("dtype", context.facts.dtype == "fp16", f"the run is {context.facts.dtype}")
    if context.recorded(LOSS_SCALE):
        return answered(
            "dtype", True, "dtype not recorded, but a loss scale is: assumed to be fp16"
        )
    return unrecorded("dtype", "neither dtype nor loss scale recorded")


def is_low_precision(context: IncidentContext) -> Observed:
    """Was the run in fp16 or bf16?"""
    known = is_half_precision(context)
    if context.facts.dtype != "bf16":
        return known
    return answered("dtype", True, known.observation)


def loss_first(context: IncidentContext) -> Observed:
    """Was the loss non-finite no later than the gradient norm?"""
    other = gradient_first(context)
    return answered(LOSS, other.is_no, other.observation) if other.is_answer else other


def nonfinite_gradient(context: IncidentContext) -> Observed:
    """Is there a record whose gradient norm is NaN or infinite?"""
    if not context.recorded(GRAD_NORM):
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    count = int(context.during(GRAD_NORM).nonfinite.sum())
    return answered(GRAD_NORM, count > 0, f"{count} non-finite gradient norms")


def scale_collapsed(context: IncidentContext) -> Observed:
    """Did the loss scale fall under 1?"""
    scale = context.during(LOSS_SCALE)
    if not scale.finite.any():
        return unrecorded(LOSS_SCALE, "loss scale not recorded")
    lowest = float(scale.values[scale.finite].min())
    return answered(
        LOSS_SCALE, lowest < context.config.scale_floor, f"lowest loss scale {digits(lowest)}"
    )


def scale_constant(context: IncidentContext) -> Observed:
    """Is the loss scale constant?"""
    scale = context.block.column(LOSS_SCALE)[: context.last_row + 1]
    values = scale.values[scale.finite]
    if not len(values):
        return unrecorded(LOSS_SCALE, "loss scale not recorded")
    constant = bool((values == values[0]).all())
    seen = f"{digits(float(values.min()))} to {digits(float(values.max()))}"
    return answered(LOSS_SCALE, constant, f"loss scale {seen} over {len(values)} records")


# A sudden rise of the loss, and what may have caused it.


def spike(context: IncidentContext) -> Observed:
    """Is there a loss above mean + 3 sigma of the 100 before it?"""
    first = context.first_finding(Symptom.LOSS_SPIKE)
    if first is None:
        return answered(LOSS, False, "no loss above the limit")
    return answered(
        LOSS,
        True,
        f"loss {digits(first.value)} at step {first.step}, limit {digits(first.limit)}"
        f"{context.caveat_of(first)}",
    )


def recovered(context: IncidentContext) -> Observed:
    """Was the loss back within mean + 0.5 sigma in 50 records?"""
    incident = context.incident
    if incident.end and incident.incident_class in _RECOVERED:
        return answered(LOSS, True, f"back at step {incident.end.step}, {incident.records} records")
    ended = "" if incident.end else "; the log ends there"
    return answered(LOSS, False, f"not back in {incident.records} records{ended}")


def had_its_time(context: IncidentContext) -> Observed:
    """Did the log continue for the 50 records that a recovery may take?"""
    seen = f"{context.incident.records} records from the onset on"
    return answered(LOSS, context.incident.incident_class is not IncidentClass.OPEN, seen)


def long_tail(context: IncidentContext) -> Observed:
    """Is the gradient norm at the spike over 30 times its rolling mean?"""
    peak = context.largest_finite(GRAD_NORM)
    usual = context.before(GRAD_NORM, context.config.window)
    if peak is None or not len(usual):
        return unrecorded(GRAD_NORM, "no finite gradient norm before clipping recorded")
    mean, _ = mean_and_deviation(usual)
    ratio = peak / mean if mean else math.inf
    return answered(
        GRAD_NORM,
        ratio > context.config.long_tail_ratio,
        f"gradient norm {digits(peak)}, {ratio:.1f} times the mean before "
        f"({digits(mean)}){context.caveat(GRAD_NORM)}",
    )


def odd_tokens(context: IncidentContext) -> Observed:
    """Are the tokens of the batch at the onset far from those of the batches before?"""
    shown = []
    odd = False
    for signal, worse in ((TOKEN_RARITY, 1.0), (UNIQUE_TOKEN_SHARE, -1.0)):
        value, usual = context.at_onset(signal), context.before(signal, context.config.window)
        if value is None or len(usual) < 2:
            continue
        mean, deviation = mean_and_deviation(usual)
        odd = odd or worse * (value - mean) > ODD_TOKENS_SIGMAS * deviation
        shown.append(f"{signal} {digits(value)}, before {digits(mean)} +- {digits(deviation)}")
    if not shown:
        return unrecorded(TOKEN_RARITY, "token statistics of the batch not recorded")
    return answered(TOKEN_RARITY, odd, "; ".join(shown))


def lr_jump(context: IncidentContext) -> Observed:
    """Did the learning rate jump at the spike?"""
    lr = context.block.column(LR)
    rows = np.flatnonzero(lr.finite[: context.onset_row + 1])[-_USUAL_RECORDS - 2 :]
    if len(rows) < 3:
        return unrecorded(LR, "learning rate not recorded")
    values = lr.values[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.abs(np.log(values[1:] / values[:-1]))
    # This loss shows the update of the step before, so a jump one record earlier counts too.
    largest = float(np.max(moves[-2:]))
    usual = float(np.median(moves[:-2])) if len(moves) > 2 else 0
    jumped = largest > math.log(LR_JUMP) and largest > _USUAL_FACTOR * usual
    path = " -> ".join(digits(float(value)) for value in values[-3:])
    return answered(LR, jumped, f"learning rate {path}")


def repeated_batch(context: IncidentContext) -> Observed:
    """Is the batch a duplicate of a recent one?"""
    prints = context.block.column(FINGERPRINT)
    row = context.onset_row
    if not context.has_onset or not prints.present[row]:
        return unrecorded(FINGERPRINT, "batch fingerprints not recorded")
    start = max(row - context.config.rise_records, 0)
    same = np.flatnonzero(prints.values[start:row] == prints.values[row])
    if not len(same):
        return answered(FINGERPRINT, False, f"no equal batch in the {row - start} records before")
    step = int(context.block.step[start + same[-1]])
    return answered(FINGERPRINT, True, f"the same batch as at step {step}")


# Slow changes: the 200 records up to the onset.


def monotone_rise(context: IncidentContext) -> Observed:
    """Has the loss risen at each of the last 200 records?"""
    count = context.config.rise_records
    first = context.first_finding(Symptom.RISING_LOSS)
    if first is None:
        return answered(LOSS, False, f"no {count} losses in a row that each rose")
    losses = context.before(LOSS, count)
    start = float(losses[0]) if len(losses) else None
    return answered(
        LOSS,
        True,
        f"loss rose {digits(start)} -> {digits(first.value)} without a break in the {count} "
        f"records up to step {first.step}",
    )


def lr_rising(context: IncidentContext) -> Observed:
    """Has the learning rate increased over the same records?"""
    rates = context.before(LR, context.config.rise_records)
    if len(rates) < 2:
        return unrecorded(LR, "learning rate not recorded")
    change = f"learning rate {digits(float(rates[0]))} -> {digits(float(rates[-1]))}"
    return answered(LR, bool(rates[-1] > rates[0]), change)


def norm_changed(context: IncidentContext) -> Observed:
    """Has a weight norm changed by more than 2x in 200 steps?"""
    names = [n for n in context.block.columns if n == PARAM_NORM or n.startswith(f"{PARAM_NORM}/")]
    changes = {}
    for name in names:
        norms = context.before(
            name, context.config.norm_steps, within_steps=context.config.norm_steps
        )
        if len(norms) > 1 and min(norms[0], norms[-1]) > 0:
            changes[name] = float(norms[0]), float(norms[-1])
    if not changes:
        return unrecorded(PARAM_NORM, "weight norms not recorded")
    name = max(changes, key=lambda name: abs(math.log(changes[name][1] / changes[name][0])))
    then, now = changes[name]
    ratio = max(now / then, then / now)
    change = f"{name} {digits(then)} -> {digits(now)} in {context.config.norm_steps} steps"
    return answered(name, ratio > context.config.norm_ratio, change)


def gradient_trend(context: IncidentContext) -> Observed:
    """Is the rolling mean of the gradient norm trending up?"""
    norms = context.before(GRAD_NORM, context.config.rise_records)
    if len(norms) < 4:
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    earlier, deviation = mean_and_deviation(norms[: len(norms) // 2])
    later, _ = mean_and_deviation(norms[len(norms) // 2 :])
    # Two standard errors of a mean of half the records: the textbook only says "trending".
    rises = later - earlier > 2 * deviation / np.sqrt(len(norms) // 2)
    means = (
        f"mean gradient norm {digits(earlier)} -> {digits(later)} from the first half to the second"
    )
    return answered(GRAD_NORM, bool(rises), f"{means}{context.caveat(GRAD_NORM)}")


FIRST_QUESTION = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf(Conclusion):
    """The end of a walk; its cause is None where the tree ends without naming a fault."""

    incident_class: IncidentClass | None = None
    """Set where the tree knows the class better than the state machine."""
    is_explained: bool = True
    """False where a supported hypothesis says more than the leaf."""


@dataclass(frozen=True, slots=True)
class TreeQuestion:
    """One fork of the tree: a check, whose docstring is the question, and where answers lead."""

    check: IncidentCheck
    yes: str
    """A question, or a leaf."""
    no: str
    """Also where the signal of the check was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAnswer:
    """One question as it was answered on a walk."""

    id: str
    question: str
    result: Observed
    goes_to: str
    """The next question, or "end"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The path through the tree for one incident."""

    answers: tuple[TreeAnswer, ...]
    leaf: Leaf


def walk(context: IncidentContext) -> Walk:
    """Ask question after question until the tree ends in a leaf."""
    answers: list[TreeAnswer] = []
    here = FIRST_QUESTION
    while here in TEXTBOOK_TREE:
        question = TEXTBOOK_TREE[here]
        result = question.check(context)
        # What was not recorded counts as no: the tree must end in a leaf for any log.
        following = question.yes if result.is_yes else question.no
        text = question.check.__doc__ or question.check.__name__
        goes_to = following if following in TEXTBOOK_TREE else "end"
        answers.append(TreeAnswer(id=here, question=text, result=result, goes_to=goes_to))
        here = following
    return Walk(answers=tuple(answers), leaf=LEAVES[here])


_TEXTS: Mapping[str, Mapping[str, Any]] = json.loads(
    resources.files(__package__).joinpath("leaves.json").read_text(encoding="utf-8")
)


def _leaf(name: str) -> Leaf:
    texts = _TEXTS[name]
    return Leaf(
        cause=next((cause for cause in Cause if cause.id == texts.get("cause")), None),
        root_cause=texts["root_cause"],
        remedy=texts["remedy"],
        lesson=texts["lesson"],
        incident_class=IncidentClass(texts["class"]) if "class" in texts else None,
        is_explained=texts.get("is_explained", True),
    )


LEAVES: Mapping[str, Leaf] = {name: _leaf(name) for name in _TEXTS}
"""Where a walk can end, by the name in leaves.json."""

TEXTBOOK_TREE: Mapping[str, TreeQuestion] = {
    "1.1": TreeQuestion(nonfinite_loss, "1.2", "1.1b"),
    "1.1b": TreeQuestion(nonfinite_norm, "CORRUPTED_STATE", "2.1"),
    "1.2": TreeQuestion(is_half_precision, "3.2", "1.3"),
    "1.3": TreeQuestion(gradient_first, "GRADIENT_FIRST", "DESTRUCTIVE_UPDATE"),
    "2.1": TreeQuestion(spike, "2.2", "3.0"),
    "2.2": TreeQuestion(recovered, "2.3a", "2.4"),
    "2.3a": TreeQuestion(long_tail, "LONG_TAIL", "2.3b"),
    "2.3b": TreeQuestion(lr_jump, "LR_JUMPED", "2.3c"),
    "2.3c": TreeQuestion(repeated_batch, "SAME_BATCH", "SPIKE_UNEXPLAINED"),
    "2.4": TreeQuestion(had_its_time, "PERSISTENT", "TOO_EARLY"),
    "3.0": TreeQuestion(is_low_precision, "3.1", "4.1"),
    "3.1": TreeQuestion(nonfinite_gradient, "3.2", "3.1b"),
    "3.1b": TreeQuestion(scale_collapsed, "COLLAPSED_SCALE", "4.1"),
    "3.2": TreeQuestion(scale_collapsed, "COLLAPSED_SCALE", "3.2b"),
    "3.2b": TreeQuestion(scale_constant, "FROZEN_SCALE", "OVERFLOW"),
    "4.1": TreeQuestion(monotone_rise, "4.2", "HEALTHY"),
    "4.2": TreeQuestion(lr_rising, "SCHEDULE", "4.3"),
    "4.3": TreeQuestion(norm_changed, "WEIGHT_DECAY", "4.4"),
    "4.4": TreeQuestion(gradient_trend, "TOO_HOT", "PLATEAU"),
}
