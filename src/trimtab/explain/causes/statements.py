"""Statements: what is said of a cause in one incident: the root cause, the smallest fix, a lesson.

A cause has a function, from the facts of the incident to its sentences, or a claim in claims.toml.
A number that was not recorded is left out together with the words around it.
"""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import NamedTuple

import numpy as np

from trimtab.core.causes import Cause
from trimtab.core.findings import Symptom
from trimtab.core.signals import LR, PARAM_NORM
from trimtab.core.text import clause, counted, digits, times_text, uncapitalized
from trimtab.explain.causes.plausible import is_skipped_overflow
from trimtab.explain.context import (
    IncidentContext,
    dtype_of,
    finite_batch_loss,
    has_experiments,
)
from trimtab.explain.evidence.checks import Answers
from trimtab.explain.measures import Symptoms, first_movers, measure
from trimtab.journal.batches.batch_report import BatchReport

NEAR_RECORDS = 8
"""Records on either side of an onset in which a setting may have changed."""

LIKE, SOON_RECORDS = 2.0, 64
"""Times within which a rate is again that from before, and the records after which it is looked at.
Chosen: a schedule goes on meanwhile."""

AS_LARGE = 0.5
"""The share of the largest change, by its logarithm, from which another is as large. Chosen: on a
schedule that falls, the way back from a jump is a little larger than the jump."""

MOVED = 1.05
"""Times by which a setting must have changed in a record to have moved at all. Chosen: schedules
change by under 2 %, but in the first records of a warm-up."""


CLIP_UP_TO = 1.0
"""A usual gradient norm up to which clipping at 0.5 is meant. Source: the guides clip at 0.5 where
0.6 is usual; chosen."""


class Said(NamedTuple):
    """What is said of a cause."""

    root_cause: str
    """One sentence: what happened, where, and how far."""
    fix: str
    """The smallest change that prevents it."""
    lesson: str
    """What the next engineer should know."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One incident, as far as statements need it."""

    context: IncidentContext
    answers: Answers

    @cached_property
    def symptoms(self) -> Symptoms:
        """The numbers that the report shows, too."""
        return measure(self.context)

    @cached_property
    def at(self) -> str:
        """Where it began: "at step 1,200"."""
        return f"at step {self.context.incident.onset.step:,}"

    @cached_property
    def loss(self) -> str:
        """How far the loss rose: "the loss went from 4.36 to 5.97"; empty if it did not."""
        before, peak = self.symptoms.loss_before, self.symptoms.loss_peak
        is_loud = self.context.incident.facts.is_loud
        if not is_loud or before is None or peak is None or peak <= before:
            return ""
        return f"the loss went from {digits(before)} to {digits(peak)}"

    @cached_property
    def norm(self) -> str:
        """How large the gradient norm was: "a gradient norm of 47.3, 0.6 before"."""
        usual, worst = self.symptoms.grad_norm_before, self.symptoms.grad_norm_peak
        if usual is None or worst is None or not worst > usual > 0:
            return ""
        return f"a gradient norm of {digits(worst)}, {digits(usual)} before"

    def seen(self, *observations: str) -> str:
        """Return the numbers of the first of these observations that was made; "" if none was."""
        yes = (self.answers[id] for id in observations if self.answers[id].is_yes)
        text = next((result.observation for result in yes), "")
        return uncapitalized(text)

    def learnt(self, lesson: str, *numbers: str) -> str:
        """Return a lesson with where it was learnt, and the numbers behind it."""
        return _with(f"{lesson}, as {self.at}", *numbers)

    def moved(self, signal: str) -> tuple[float, float, int] | None:
        """Return a setting before and after its jump near the onset, and that step.

        Of several as large, such as a jump and the way back, the first one.
        """
        row, block = self.context.onset_row, self.context.block
        near = block[max(row - NEAR_RECORDS, 0) : row + NEAR_RECORDS]
        column = near.column(signal)
        values, steps = column.values[column.finite], near.step[column.finite]
        if len(values) < 2 or not (values > 0).all() or not np.ptp(values):
            return None
        changes = np.abs(np.diff(np.log(values)))
        if changes.max() < math.log(MOVED):
            return None
        last = int(np.argmax(changes >= AS_LARGE * changes.max()))
        return float(values[last]), float(values[last + 1]), int(steps[last + 1])

    def setting(self, name: str) -> float | None:
        """Return a setting of the run; None if it is not known."""
        return self.context.facts.settings.get(name)

    @property
    def batch(self) -> BatchReport | None:
        """What was kept of its batch."""
        return self.context.batch


_Statement = Callable[[Case], Said]
_STATEMENTS: dict[Cause, _Statement] = {}


def say(cause: Cause, case: Case) -> Said:
    """Return what is said of a cause in an incident."""
    statement = _STATEMENTS.get(cause)
    return statement(case) if statement else _CLAIMS[cause.id](case)


def _of(cause: Cause) -> Callable[[_Statement], _Statement]:
    def register(statement: _Statement) -> _Statement:
        _STATEMENTS[cause] = statement
        return statement

    return register


def _with(text: str, *numbers: str) -> str:
    """Return a sentence with the numbers behind it, as far as there are any."""
    known = "; ".join(filter(None, numbers))
    return f"{text}: {known}." if known else f"{text}."


# Data


@_of(Cause.HARD_BATCH)
def _hard_batch(case: Case) -> Said:
    rows = case.seen("few_rows")
    return Said(
        _with(f"The batch {case.at} was much harder than the others", rows, case.loss, case.norm),
        f"None needed if it stays alone; if it comes again, look at the batch {case.at}.",
        f"A single hard batch {case.at} left the model as it was: most single spikes are data.",
    )


@_of(Cause.RARE_TOKENS)
def _rare_tokens(case: Case) -> Said:
    """Name the tokens if they were kept, else the numbers that speak for them."""
    is_repeated = not case.seen("rare_tokens") and bool(case.seen("few_distinct_tokens"))
    tokens = "one phrase repeated over and over" if is_repeated else "tokens that are rare"
    named = _tokens_of(case.batch)
    numbers = case.seen("rare_tokens", "few_distinct_tokens")
    clip = case.setting("clip")
    now = f", now {digits(clip)}" if clip else ""
    spread = (
        "Filter documents that repeat one phrase"
        if is_repeated
        else "Spread rare tokens, at most one occurrence of a token seen under 10 times in a batch"
    )
    return Said(
        _with(
            f"The batch {case.at} holds {tokens}",
            named,
            _also_unusual(case.batch),
            numbers,
            case.norm,
            case.loss,
        ),
        f"Look at these rows (`trimtab corpus order` finds them): drop what is damaged. {spread}, "
        f"and clip at {_clip(case)}{now}.",
        case.learnt(
            f"One batch of {'repeated' if is_repeated else 'rare'} tokens can dominate an update",
            named or case.norm,
        ),
    )


def _clip(case: Case) -> str:
    """Return where to clip: the guides' 0.5, or the usual norm if that would clip every step."""
    usual = case.symptoms.grad_norm_before
    if usual is None or usual <= CLIP_UP_TO:
        return "0.5, as the stability guides do"
    return f"{digits(usual)}, the usual norm"


def _also_unusual(batch: BatchReport | None) -> str:
    """Return how many of the next batches have unusual rows too, one after the other."""
    following = 0
    while batch is not None and batch.data_position + following + 1 in batch.unusual_positions:
        following += 1
    if following == 0:
        return ""
    return "so does the next one" if following == 1 else f"so do the next {following}"


def _tokens_of(batch: BatchReport | None) -> str:
    """Return the token that stands out most: "token 'tten' is 61 % of it (0.02 % in the run)"."""
    tokens = () if batch is None else batch.tokens
    if not tokens:
        return ""
    first = tokens[0]
    name = str(first.id) if first.text is None else f"{first.id} {first.text!r}"
    whose = "its unusual rows" if batch and batch.num_unusual_rows else "it"
    usually = f"{100 * first.run_share:.2g} % usually"
    return f"token {name} is {100 * first.share:.2g} % of {whose}, {usually}"


# Schedule and optimizer


@_of(Cause.LR_DISCONTINUITY)
def _lr_discontinuity(case: Case) -> Said:
    moved, jump, back = case.moved(LR), case.seen("lr_jumped"), "the rate before it"
    at, remedy = case.at, ""
    resumed = ", and restore the scheduler's state at a resume" if case.seen("resumes") else ""
    if moved is not None:
        before, now, step = moved
        at = f"at step {step:,}"
        times = max(now / before, before / now)
        jump = f"{digits(before)} -> {digits(now)}, {times_text(times)}"
        back = digits(before)
        rates = case.context.during(LR)
        last = rates.values[rates.finite][:SOON_RECORDS][-1:]
        if len(last) and 1 / LIKE < last[0] / before < LIKE < times:
            remedy = f"Find what raised the rate to {digits(now)} {at}; it went back by itself"
    if not remedy:
        remedy = f"Make the schedule continuous {at}: stay near {back}, or warm up from it"
    return Said(
        _with(f"The learning rate jumped {at}", jump, case.loss),
        f"{remedy}{resumed}.",
        case.learnt("A jump of the learning rate shows in the loss", jump),
    )


@_of(Cause.STALE_SECOND_MOMENT)
def _stale_second_moment(case: Case) -> Said:
    numbers = case.seen("gradient_over_v", "updates_grew", "beta2_high")
    beta2 = case.setting("beta2")
    now = f", now {digits(beta2)}" if beta2 is not None else ""
    return Said(
        _with(f"The second moment was too small for the gradient {case.at}", numbers, case.loss),
        f"Set beta2 to 0.95{now}: it forgets a stale second moment in 20 steps.",
        case.learnt("A second moment that lags makes every update too large", numbers),
    )


@_of(Cause.EPSILON_REGIME)
def _epsilon_regime(case: Case) -> Said:
    numbers = case.seen("updates_shrank", "gradient_under_v", "epsilon_large")
    epsilon = case.setting("epsilon")
    now = f", now {digits(epsilon)}" if epsilon is not None else ""
    return Said(
        _with(f"Epsilon outgrew the root of the second moment {case.at}", numbers),
        f"Lower epsilon to 1e-8{now}, and compare the loaded optimizer state with that before.",
        case.learnt("The update norm shows a large epsilon long before the loss", numbers),
    )


@_of(Cause.LR_TOO_HIGH)
def _lr_too_high(case: Case) -> Said:
    rate = "" if case.symptoms.lr is None else f" of {digits(case.symptoms.lr)}"
    numbers = case.seen("attention_logits_grow", "activations_grow", "weights_grow", "no_warmup")
    return Said(
        _with(f"The learning rate{rate} {case.at} is too high for this model", numbers, case.loss),
        f"Lower the peak by a factor of 2 to 3{rate and f' (the rate was {rate[4:]})'} and warm up "
        "longer.",
        case.learnt("A rate that is too high shows early", numbers),
    )


@_of(Cause.WEIGHT_DECAY)
def _weight_decay(case: Case) -> Said:
    numbers = case.seen("weights_doubled", "weights_shrink", "weights_grow")
    norms = case.context.during(PARAM_NORM)
    sizes = norms.values[norms.finite]
    has_shrunk = bool(case.seen("weights_doubled")) and len(sizes) > 0 and sizes[-1] < sizes[0]
    way = "halve" if has_shrunk or case.seen("weights_shrink") else "double"
    return Said(
        _with(f"Weight decay does not balance the updates from {case.at[3:]} on", numbers),
        f"{way.capitalize()} the weight decay: weight norms then stay on their trend.",
        case.learnt("Weight norms leave their trend before the loss does", numbers),
    )


# Numbers


@_of(Cause.FP16_OVERFLOW)
def _fp16_overflow(case: Case) -> Said:
    found = case.seen("module_nonfinite").partition(";")[0]
    numbers = case.seen("scale_fell", "scale_frozen", "overflows", "finite_in_fp32")
    if is_skipped_overflow(case.context):
        return Said(
            _with(
                f"A gradient left the range of fp16 {case.at}, and the scaler skipped it", numbers
            ),
            "None if it stays rare: a scaler skips such steps. State the dtype to tell.",
            case.learnt("A gradient that is not finite beside finite losses was skipped", numbers),
        )
    where = f": first in {found}" if found else ", or look for the layer whose activations grow"
    when = case.at if case.context.incident.facts.records_before else "before this log begins"
    return Said(
        _with(f"A value left the range of fp16 (65,504) {when}", found, numbers),
        f"Train in bf16{where}; check that the scaler is updated at every step.",
        case.learnt("A loss scale that keeps falling says that step after step overflows", numbers),
    )


@_of(Cause.LOGIC_NAN)
def _logic_nan(case: Case) -> Said:
    """Name the module if an experiment has found it."""
    found = case.seen("module_nonfinite").partition(";")[0]
    if found:
        return Said(
            f"The forward pass makes the NaN {case.at}: {found}.",
            "Fix this operation: log_softmax for log(softmax), a mean that survives an empty mask, "
            "no division by a sum that can be 0.",
            f"One operation made NaN from finite inputs: {found}.",
        )
    numbers = case.seen("loss_nonfinite")
    # The gradient may have been NaN before: `at` is the onset of both.
    at = numbers.partition(" at ")[2]
    value = "infinite" if "inf" in numbers else "NaN"
    what = f"The loss became {value} at {at}" if at else f"A gradient became NaN {case.at}"
    dtype = dtype_of(case.context)
    where = f" in {dtype}" if dtype else ""
    outside = finite_batch_loss(case.context)
    if outside is not None:
        return Said(
            f"{what}{where}, and `batch_loss` of the same batch is {digits(outside)}: the {value} "
            "arises outside of it, between `batch_loss` and `record`.",
            "Look at what training does with the loss besides `batch_loss`: a factor, a further "
            "term, a mean over what can be empty.",
            f"A {value} that `batch_loss` does not show is not made by the model, as {case.at}.",
        )
    run = "Run one batch with a finiteness check after each module"
    if not has_experiments(case.context):
        run += ' (`trimtab.watch(..., mode="recover", batch_loss=...)` does so by itself)'
    return Said(
        f"{what}{where}: the batch, a weight or an operation in the forward pass; which one is not "
        "recorded.",
        f"{run}, and fix the first one that fails: log(softmax), or a mean over an empty mask.",
        _with(f"A check after each module {case.at} would have named it", numbers),
    )


@_of(Cause.BIT_FLIP)
def _bit_flip(case: Case) -> Said:
    proof = case.seen("bit_flipped")
    numbers = case.seen("moved_from_outside", "weights_jumped")
    cause = f"{proof[:1].upper()}{proof[1:]} {case.at}, and no code had written to it."
    if not proof and numbers:
        cause = _with(f"Weights or moments changed {case.at} by more than an update can", numbers)
    elif not proof:
        moves, _ = first_movers(case.context.block, case.context.onset_row)
        first = [one.signal.partition("/")[2] for one in moves[:1] if not math.isfinite(one.ratio)]
        numbers = case.seen("state_nonfinite_first")
        where = f", first seen in {first[0]}" if first else ""
        cause = _with(
            f"A weight or a moment left its range {case.at}{where}, by no update", numbers
        )
    is_alone = (case.context.facts.ranks or 1) == 1
    act = "Run a memory test on this device" if is_alone else "Note the rank"
    return Said(
        cause,
        f"{act}; replace the device if it happens again.",
        case.learnt(
            f"Memory can change without code: checksums {'' if proof else 'would '}show it",
            proof or numbers,
        ),
    )


@_of(Cause.PARAMETERS_NOT_UPDATING)
def _not_updating(case: Case) -> Said:
    said, constant = _CLAIMS[Cause.PARAMETERS_NOT_UPDATING.id](case), case.seen("loss_constant")
    if constant:
        said = said._replace(root_cause=_with("Updates never reached the parameters", constant))
    return said


@_of(Cause.REPLICAS_OUT_OF_SYNC)
def _replicas_out_of_sync(case: Case) -> Said:
    differ = case.context.first_finding(Symptom.REPLICAS_DIFFER)
    numbers = f"seen at step {differ.step:,}" if differ else case.seen("all_weights_jumped")
    return Said(
        _with("The weights of one rank differ from those of the others", numbers),
        "Compare checksums of the weights over the ranks, and broadcast those of a good one.",
        case.learnt("Data-parallel ranks never compare their weights by themselves", numbers),
    )


# Causes whose statement is a claim with the numbers of its observations


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim about a cause; "{at}" stands for where it began, "{since}" for from where on."""

    root_cause: str
    observations: Sequence[str]
    """What holds its numbers, the most telling first."""
    fix: str
    lesson: str

    def __call__(self, case: Case) -> Said:
        numbers = case.seen(*self.observations)
        words = {"at": case.at, "since": f"from {case.at[3:]} on"}
        return Said(
            _with(self.root_cause.format(**words), numbers),
            self.fix.format(**words),
            case.learnt(self.lesson, numbers),
        )


_CLAIMS: Mapping[str, _Claim] = {
    id: _Claim(**claim)
    for id, claim in tomllib.loads(
        resources.files(__package__).joinpath("claims.toml").read_text(encoding="utf-8")
    ).items()
}
"""By the id of a cause that has no function of its own, or by what happened."""


# Where no cause of the catalogue is named


def say_nothing_fits(case: Case) -> Said:
    """Return what is said where no known cause fits."""
    loss = clause(case.loss) or "it began"
    repeat = "Repeat the step from the state before it: that tells the batch from the state"
    if not has_experiments(case.context):
        repeat += " (`trimtab.watch(..., batch_loss=...)` does so by itself)"
    return Said(
        "Not known: nothing that was recorded speaks for a known cause.",
        f"{repeat}.",
        f"Nobody knows why {loss} {case.at}: what was not recorded could have named the cause.",
    )


BATCH_NOT_FINITE = _CLAIMS["batch not finite"]
"""What is said where an experiment has shown it of the batch itself."""


def _slow(case: Case) -> Said:
    numbers = case.seen("slower", "stalls")
    return Said(
        "Not known: steps take longer, and nothing else in the run has changed.",
        "Look at what else the machine does, at its clocks and at the network.",
        case.learnt(
            "A pace that falls without a change in the run has its cause outside of it", numbers
        ),
    )


def _no_learning(case: Case) -> Said:
    incident = case.context.incident
    found = next(one for one in incident.findings if one.symptom == Symptom.NO_LEARNING)
    after = f"after {counted(found.tick + 1, 'record')}"
    loss = "" if found.value is None else f" of {digits(found.value)}"
    if incident.facts.is_frozen and found.value is not None:
        claim = f"The loss has stood still at {digits(found.value)} {after}: nothing is learned."
    elif found.value is not None and found.expected is not None:
        claim = (
            f"The loss is {digits(found.value)} {after}, and {digits(found.expected)} without any "
            "learning: nothing has been learned."
        )
    else:
        claim = f"Nothing has been learned {after}."
    return Said(
        claim,
        "Check labels, masks and the learning rate; overfit one batch before the next run.",
        f"A loss{loss} that does not move {after} will not do so by itself.",
    )


BY_SYMPTOM: Mapping[str, _Statement] = {
    Symptom.MISSING_LOSS: _CLAIMS["missing loss"],
    Symptom.SLOW: _slow,
    Symptom.REFERENCE_GAP: _CLAIMS["reference gap"],
    Symptom.NO_LEARNING: _no_learning,
}
"""Where nothing known fits, but a finding says what happened."""
