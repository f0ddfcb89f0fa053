"""What can be said about causes before, and beside, the evidence of one incident.

Situation   what kind of run it is, how the incident looks, and which causes are impossible there
prior       how often a cause was behind such an incident, counted from published ones
cap         how probable a cause may be called with what was recorded

All numbers are in base_rates.json, with their source.
"""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from trimtab.core import signals
from trimtab.core.causes import Cause
from trimtab.core.findings import NOT_FINITE, Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.explain.context import IncidentContext, has_responses, has_scaler
from trimtab.explain.evidence.checks import Answers, nonfinite_loss

BASE_RATES = "base_rates.json"
OUTSIDE = "outside"

MIN_USUAL = 8
"""With fewer records before the onset, nothing is known about what is usual."""

MIN_RISE, STILL_UP = 3, 0.8
"""Losses that say whether one is still up, and the share of its rise that is left then. Source: two
rises in a row are the largest of a run by chance more seldom than one in 500."""

MAX_FIRST_STEP = 100
"""A log that begins later does not show where the loss began."""

TIME_SYMPTOMS = frozenset({Symptom.STALL, Symptom.SLOW})
TIME_CAUSES = frozenset({Cause.LOADER_STALL, Cause.SLOW_RANK})
"""What slow steps look like, and the causes that have them as their only symptom."""

RISING = frozenset({Symptom.LOSS_SPIKE, Symptom.LEVEL_SHIFT, Symptom.RISING_LOSS})
"""What a detector says of a loss that rises."""

LASTING_CAUSES = frozenset(
    {Cause.LOSS_REDUCTION_BUG, Cause.WEIGHT_DECAY, Cause.PARAMETERS_NOT_UPDATING}
)
"""What a loss does not come back from by itself: a factor, a setting or a bug stays."""

DATA_CAUSES = frozenset(
    {Cause.HARD_BATCH, Cause.RARE_TOKENS, Cause.DUPLICATE_BATCH, Cause.DATA_MIX_SHIFT}
)
"""What the batches are to blame for."""

FINITE_CAUSES = frozenset({Cause.HARD_BATCH, Cause.DUPLICATE_BATCH, Cause.BATCH_SIZE_CHANGE})
"""What changes numbers, and does not make them leave the finite ones at once."""

ADAM_CAUSES = frozenset(
    {Cause.OPTIMIZER_STATE_LOST, Cause.STALE_SECOND_MOMENT, Cause.EPSILON_REGIME}
)
"""What needs Adam's moments."""

LOGIT_CAUSES = frozenset({Cause.ATTENTION_LOGIT_GROWTH, Cause.OUTPUT_LOGIT_DRIFT})
NO_TOKENS = frozenset(f"{signals.PARAM_NORM}/{role}" for role in ("norm", "head", "mlp", "other"))
"""Groups of weights of a model without tokens and attention: nothing in it is called so, and it has
no embedding, which attention of an unknown name would have, too."""

RATE_CAUSES = frozenset({Cause.LR_DISCONTINUITY, Cause.WRONG_SCHEDULE})
RANK_CAUSES = frozenset({Cause.REPLICAS_OUT_OF_SYNC, Cause.SLOW_RANK, Cause.BAD_DEVICE})
"""What a run of one rank cannot have: there is no other to differ from, or to compare with."""

RESPONSE_CAUSES = frozenset(
    {
        *(Cause.STALE_ROLLOUT_WEIGHTS, Cause.SAMPLING_MISMATCH, Cause.DATA_DIFFICULTY),
        *(Cause.LENGTH_BIAS, Cause.LENGTH_LIMIT, Cause.OFF_POLICY, Cause.TEMPLATE_BUG),
    }
)
"""What a policy without prompts and responses cannot have."""

REWARD_RISES = frozenset({Cause.REWARD_HACKING, Cause.LENGTH_BIAS})
"""What a policy is paid for: no cause of a reward that is gone."""

_CIRCUMSTANCES = frozenset({"resumes", "half_precision", "several_ranks", "nan_in_range"})
"""What is so in many runs, and no sign of a cause by itself."""


@cache
def base_rates() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath(BASE_RATES).read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


CURVES = frozenset(base_rates()["curves"])
"""Observations on loss and gradient norm alone: how a curve bends in a small model carries over to
other runs less than which signal moved."""


def concerns(observation: str, cause: Cause) -> bool:
    """Return whether an observation is about what this cause does.

    Others are weighed, too: they were more frequent, or rarer, in its incidents in the lab. They
    convince nobody who does not know the lab, so no report cites them.
    """
    rates = base_rates()
    constructed = rates["by construction"]["shares"].get(observation, {})
    is_sign = observation in CURVES or cause.id in constructed
    return is_sign or observation in rates["decides"][cause.id]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known about an incident besides its observations."""

    shape: str = "open"
    """How the incident looks: a key of `shapes` in the base rates."""
    kind: str | None = None
    """The kind of training: a key of `kinds`; None if it is not known."""
    impossible: frozenset[Cause] = frozenset()
    """Causes that this run, or an incident like this, cannot have."""
    has_own_signals: bool = False
    """Whether more than curves speaks: updates and moments were recorded, as in the lab where the
    weights were fitted, or a cause shows in a signal of its own."""

    def prior(self, cause: Cause | None) -> float:
        """Return how often the cause was behind such an incident, up to a common factor."""
        rates = base_rates()
        logs = _log_rate(rates["shapes"][self.shape], cause)
        if self.kind is not None:
            logs += _log_rate(rates["kinds"][self.kind], cause) - _log_rate(rates["all"], cause)
        return math.exp(self._counts["prior"] * logs)

    def share(self, observation: str, yes: bool) -> float:
        """Return how much of its fitted weight an answer counts for in such a run."""
        if observation in base_rates()["says nothing"]:
            return 0.0
        return self._counts["yes" if yes else "no"] if observation in CURVES else 1.0

    @property
    def _counts(self) -> Mapping[str, float]:
        counts: Mapping[str, Mapping[str, float]] = base_rates()["counts"]
        return counts["own signals" if self.has_own_signals else "curves alone"]

    def has_seen(self, cause: Cause) -> bool:
        """Return whether a published incident that looked like this one had this cause."""
        return cause.id in base_rates()["shapes"][self.shape]


def _log_rate(counts: Mapping[str, float], cause: Cause | None) -> float:
    if not counts:  # an incident without a shape yet: nothing was counted
        return 0.0
    id, smoothing = OUTSIDE if cause is None else cause.id, base_rates()["smoothing"]
    return math.log(counts.get(id, 0) + smoothing.get(id, smoothing["others"]))


def cap(cause: Cause, answers: Answers) -> float:
    """Return how probable a cause may be called: by how many of its own signals show it."""
    rates = base_rates()
    seen = answers.yes.intersection(rates["decides"][cause.id])
    if not seen:
        return float(rates["caps"]["none"])
    if seen <= CURVES:
        return float(rates["caps"]["curves"])
    is_exact = not seen.isdisjoint(rates["exact"])
    is_one = len(seen - _CIRCUMSTANCES) <= 1
    return float(rates["caps"]["one"]) if is_one and not is_exact else 1.0


def situation_of(context: IncidentContext, answers: Answers) -> Situation:
    """Return the situation of an incident."""
    kind = kind_of(context)
    impossible = _impossible(context, answers, kind)
    has_state = any(
        name.startswith((signals.ADAM_V_NORM, f"{signals.UPDATE_NORM}/"))
        for name in context.block.columns
    )
    possible = [cause.id for cause in Cause if cause not in impossible]
    own = {name for id in possible for name in base_rates()["decides"][id]}
    own -= CURVES | _CIRCUMSTANCES
    return Situation(
        shape=shape_of(context, answers),
        kind=kind,
        impossible=impossible,
        has_own_signals=has_state or not own.isdisjoint(answers.yes),
    )


_SHAPES: Mapping[IncidentClass, str] = {
    IncidentClass.KEPT_OUT: "spike",
    IncidentClass.RESTORED: "spike",
    IncidentClass.RECOVERED: "spike",
    IncidentClass.RECOVERING: "spike",
    IncidentClass.SILENT: "silent",
    IncidentClass.PLATEAU: "plateau",
    IncidentClass.OPEN: "open",
    IncidentClass.LINGERING: "level",
    IncidentClass.COLLAPSED: "policy",
    IncidentClass.DIVERGENT: "divergence",
    IncidentClass.DEAD: "divergence",
}


def shape_of(context: IncidentContext, answers: Answers) -> str:
    """Return how the incident looks, as a key of the base rates."""
    incident = context.incident
    if incident.is_of_policy:
        return "policy"
    if "resumes" in answers.yes or incident.facts.started_again:
        return "at a restart"
    if "loss_nonfinite" in answers.yes or Symptom.NONFINITE_LOSS in incident.symptoms:
        return "divergence" if _rose_first(context) else "not finite"
    if Symptom.NO_LEARNING in incident.symptoms:
        return "never learnt"
    if is_skipped_overflow(context):
        return "not finite"
    # A silent incident has no rise of the loss that a gradient could begin.
    is_silent = incident.incident_class is IncidentClass.SILENT
    if "gradient_long_tail" in answers.yes and not is_silent:
        return "gradient burst"
    if came_back(context):
        return "spike"
    # A slow rise that has not ended, or an incident that ends near its peak.
    left = _share_left(context) if incident.incident_class is IncidentClass.OPEN else None
    if "loss_creeps_up" in answers.yes or (left is not None and left > STILL_UP):
        return "divergence"
    return _SHAPES[incident.incident_class]


def came_back(context: IncidentContext) -> bool:
    """Return whether the loss rose and is where it was before, by its class and by its records."""
    return context.incident.incident_class is IncidentClass.RECOVERED


def _share_left(context: IncidentContext) -> float | None:
    """Return how much of its rise the loss still has at the last records; None if they are few."""
    before, losses = context.before(signals.LOSS, 16), context.during(signals.LOSS)
    during = losses.values[losses.finite]
    if len(before) < MIN_USUAL or len(during) < MIN_RISE:
        return None
    usual, peak = float(np.median(before)), float(during.max())
    now = float(np.median(during[-min(max(len(during) // 4, 1), 4) :]))
    return (now - usual) / (peak - usual) if peak > usual else None


def _rose_first(context: IncidentContext) -> bool:
    """Return whether the loss rose far before it was not finite: the NaN is the end of it."""
    loss = context.during(signals.LOSS)
    usual = context.before(signals.LOSS, 64)
    until = int(np.argmax(loss.nonfinite)) if loss.nonfinite.any() else 0
    rising = loss.values[:until][loss.finite[:until]]
    return len(usual) >= MIN_USUAL and len(rising) > 1 and bool(rising[-2:].min() > 2 * usual.max())


def kind_of(context: IncidentContext) -> str | None:
    """Return the kind of training: by what it records, its trainer's name, or its first losses."""
    rates = base_rates()
    recorded = [name for name, column in context.block.columns.items() if column.recorded]
    for kind in ("reinforcement learning", "other"):
        if any(_has_word(name, word) for name in recorded for word in rates["columns"][kind]):
            return kind
    trainer = (context.facts.trainer or "").lower()
    for kind, names in rates["trainers"].items():
        if any(name in trainer for name in names):
            return str(kind)
    is_text = any(word in name.lower() for name in recorded for word in rates["columns"]["tokens"])
    return "pretraining" if is_text or _begins_as_text(context) else None


def _begins_as_text(context: IncidentContext) -> bool:
    """Return whether the loss began at the entropy of a large vocabulary, and has fallen since."""
    loss = context.block.column(signals.LOSS)
    values = loss.values[loss.finite]
    is_start = len(values) >= MIN_USUAL and int(context.block.step[0]) < MAX_FIRST_STEP
    first, last = base_rates()["first loss of text"]["range"]
    return bool(is_start and first < values[0] < last and values.min() < 0.7 * values[0])


def _has_word(name: str, word: str) -> bool:
    """Return whether a column is called so: as a whole word, `train/kl` but not `skl`."""
    return re.search(rf"(^|[^a-z0-9]){re.escape(word)}($|[^a-z0-9])", name.lower()) is not None


POLICY_CAUSES = frozenset(cause for cause in Cause if cause.is_of_policy)


def _impossible(context: IncidentContext, answers: Answers, kind: str | None) -> frozenset[Cause]:
    """Return what this run cannot have, by its kind and by what it records."""
    incident, block = context.incident, context.block

    def recorded(*names: str) -> bool:
        return any(block.column(name).recorded for name in names)

    if incident.is_of_policy:
        reward = incident.facts.reward
        is_gone = reward is not None and reward.is_gone
        out = set(REWARD_RISES) if is_gone else set()
        out |= set() if has_responses(context) else RESPONSE_CAUSES
        out |= set() if recorded(signals.KL) else {Cause.WRONG_REFERENCE}
        return frozenset(Cause) - (POLICY_CAUSES - out)

    symptoms, is_back = set(incident.symptoms), came_back(context)
    is_finite = NOT_FINITE.isdisjoint(symptoms)
    is_multiplied = "loss_multiplied" in answers.yes
    looks_finite = answers.yes.isdisjoint({"loss_nonfinite", "gradient_nonfinite_first"})
    adaptive = "adam|lamb|lion|adafactor|sophia|muon|shampoo|soap|rmsprop"
    certain: list[tuple[Collection[Cause], bool]] = [
        (POLICY_CAUSES, True),
        # Where only time is lost, what the data or the weights look like by chance explains
        # nothing; where none is, no stall explains it.
        (frozenset(Cause) - TIME_CAUSES, bool(symptoms) and symptoms <= TIME_SYMPTOMS),
        (TIME_CAUSES, TIME_SYMPTOMS.isdisjoint(symptoms)),
        (RANK_CAUSES, answers["several_ranks"].is_no),
        (LASTING_CAUSES, is_back),
        ([Cause.HARD_BATCH], _burst_has_usual_loss(context, answers)),
        # A factor that leaves the loss as it was is in the gradient alone; else it is in both.
        ([Cause.LOSS_REDUCTION_BUG], bool(symptoms & RISING) and not is_multiplied),
        ([Cause.LOGIC_NAN], (is_finite and looks_finite) or _state_was_bad(answers)),
        # The scaler skipped what overflowed: it followed the spike.
        ([Cause.FP16_OVERFLOW], is_finite and looks_finite and is_back),
        (FINITE_CAUSES, incident.findings[0].symptom in NOT_FINITE),
        # A gradient that was not finite and was applied is in the weights, and in the next loss.
        ([Cause.BIT_FLIP], is_skipped_overflow(context)),
        (ADAM_CAUSES, not re.search(adaptive, (context.facts.optimizer or "adam").lower())),
    ]
    has_tokens = recorded(signals.TOKENS, signals.TOKEN_RARITY, signals.UNIQUE_TOKEN_SHARE)
    groups = {name for name in block.columns if name.startswith(f"{signals.PARAM_NORM}/")}
    has_logits = bool(groups) or recorded("max_attention_logit", "max_log_z")
    is_nan = not (
        is_finite
        and nonfinite_loss(context).is_no
        and not context.during(signals.GRAD_NORM).nonfinite.any()
    )
    # What was not recorded cannot be said, unless a detector has seen it all the same.
    unless_seen: list[tuple[Collection[Cause], bool]] = [
        (RATE_CAUSES, not recorded(signals.LR)),
        ([Cause.BATCH_SIZE_CHANGE], not has_tokens),
        ([Cause.RARE_TOKENS], not has_tokens and kind in ("other", "reinforcement learning")),
        (LOGIT_CAUSES, not has_logits and kind not in ("pretraining", "fine-tuning")),
        ([Cause.ATTENTION_LOGIT_GROWTH, Cause.RARE_TOKENS], bool(groups) and groups <= NO_TOKENS),
        ([Cause.FP16_OVERFLOW], not (is_nan and _may_overflow(context))),
    ]
    decides, yes = base_rates()["decides"], answers.yes - CURVES - {"half_precision"}
    out = {cause for causes, is_out in certain if is_out for cause in causes}
    unseen = (cause for causes, is_out in unless_seen if is_out for cause in causes)
    return frozenset(out.union(cause for cause in unseen if yes.isdisjoint(decides[cause.id])))


def _state_was_bad(answers: Answers) -> bool:
    """Return whether the weights were not finite before a forward pass made a NaN of its own."""
    by_state = "state_nonfinite_first" in answers.yes
    by_gradient = "gradient_nonfinite_first" in answers.yes
    return "weights_nonfinite" in answers.yes or (by_state and not by_gradient)


def _burst_has_usual_loss(context: IncidentContext, answers: Answers) -> bool:
    """Return whether the loss of the batch whose gradient is far too large is as usual: the batch
    was no harder than others, and the update did the harm."""
    if "gradient_long_tail" not in answers.yes:
        return False
    rows = context.rows_of_rise
    row = rows.start + int(np.nanargmax(context.block.column(signals.GRAD_NORM).values[rows]))
    loss, before = context.at(row, signals.LOSS), context.before(signals.LOSS, 64)
    return loss is not None and len(before) >= MIN_USUAL and loss <= float(before.max())


def is_skipped_overflow(context: IncidentContext) -> bool:
    """Return whether a gradient was not finite and the losses are, as where a scaler skips it."""
    loss, norm = context.during(signals.LOSS), context.during(signals.GRAD_NORM)
    has_symptom = Symptom.NONFINITE_GRAD_NORM in context.incident.symptoms
    is_bad = has_symptom and bool(norm.nonfinite.any())
    is_back = came_back(context) and bool(loss.finite.any()) and not loss.nonfinite.any()
    return is_bad and is_back and _may_overflow(context)


def _may_overflow(context: IncidentContext) -> bool:
    """Return whether the run may be fp16: it says so, a scaler works, or nothing is known."""
    if has_scaler(context):
        return True
    if context.facts.dtype is not None:
        return context.facts.dtype == "fp16"
    scale = context.block.column(signals.LOSS_SCALE)
    values = scale.values[scale.finite]
    return not len(values) or bool(values.max() > 1)
