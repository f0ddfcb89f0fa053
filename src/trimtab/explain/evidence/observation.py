"""Observation: one thing that can be observed around an incident, whatever its cause.

An observation is a function whose parameters name its inputs. It is made where all of them were
recorded; it returns yes or no with the numbers behind it, or None where the records do not suffice
(or `SignalView.median` finds too few of them):

    @observation("The optimizer's second moment falls", source="...")
    def v_fell(adam_v_norm: SignalView) -> YesNo | None:
        return adam_v_norm.jump() < 0.9, f"{adam_v_norm.jump():.3g} times the one before"

A parameter is the name of a signal, or one of the names in `INPUTS`. A finding of a detector can
answer it, too: `symptoms=(Symptom.LR_JUMP,)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from trimtab.core import signals
from trimtab.core.block import FloatArray
from trimtab.core.events import EXPERIMENT
from trimtab.core.findings import Finding, Symptom
from trimtab.core.robust import median, sigma_around
from trimtab.core.rules import Missing, RuleFunction
from trimtab.core.text import digits
from trimtab.explain.context import (
    NEAR_STEPS,
    IncidentContext,
    dtype_of,
    proof_of_hardware,
)
from trimtab.explain.evidence.checks import (
    Observed,
    answered,
    begins_again,
    resumed,
    too_few,
    unrecorded,
)

YesNo = tuple[bool, str]
"""The answer of an observation, and the numbers behind it."""

NONFINITE_RECORDS = 3
"""Records from where an incident shows in which no layer may be non-finite, if the others are to
say how far they moved. Chosen: a NaN spreads in one step."""

RECORDS = 64
"""Records before and after the onset that a view holds. Source: faults of small models move
their first signal within 8 steps of each other and show their outcome within 64."""

MIN_BEFORE = 8
"""With fewer records before the onset, nothing is known about what is usual."""

MIN_MOVING = 3
"""Records after the onset that can show a growth: two changes in a row are the two largest of 34 by
chance once in 561 times."""


class TooFewRecords(Exception):
    """The records after the onset do not suffice for an answer."""


@dataclass(frozen=True)
class SignalView:
    """One signal around the onset; only made where there are finite values on both sides."""

    name: str
    before: FloatArray
    """The last finite values before the onset."""
    after: FloatArray
    """The values from where the incident shows, up to the first that is not finite."""
    lead: FloatArray = field(default_factory=lambda: np.empty(0))
    """The values between the two: an onset may be dated back to a warning."""

    @cached_property
    def usual(self) -> float:
        return float(np.median(self.before))

    @cached_property
    def noise(self) -> float:
        """The robust standard deviation before the onset; never 0."""
        return deviation(self.before)

    def has(self, start: int, stop: int) -> bool:
        """Return whether at least half of these records after the onset are there."""
        return len(self.after[start:stop]) >= (stop - start + 1) // 2

    def median(self, start: int, stop: int) -> float:
        """Return the median of these records after the onset; raises TooFewRecords."""
        if not self.has(start, stop):
            raise TooFewRecords
        return float(np.median(self.after[start:stop]))

    def soon(self, records: int) -> FloatArray:
        """Return the values from the onset to this many records from where the incident shows."""
        return np.concatenate((self.lead, self.after[:records]))

    def peak(self, records: int) -> float:
        """Return the largest value of `soon`, in multiples of the usual value."""
        return self.ratio(float(self.soon(records).max()))

    def ratio(self, value: float) -> float:
        return value / self.usual if self.usual else (1.0 if value == 0 else np.inf)

    def sigmas(self, value: float) -> float:
        """Return how far a value is from the usual one, in standard deviations."""
        return (value - self.usual) / self.noise

    def jump(self) -> float:
        """Return the largest change since the onset, as a multiple of the value before it."""
        last, now = self._step()
        return now / last if last else np.inf

    def jump_sigmas(self) -> float:
        """Return the same change in deviations of the changes before the onset."""
        changes = np.diff(self.before)
        last, now = self._step()
        return (now - last - float(np.median(changes))) / deviation(changes)

    def _step(self) -> tuple[float, float]:
        """Return two values in a row: those that differ most, up to where the incident shows."""
        values = np.concatenate((self.before[-1:], self.lead, self.after[:1]))
        at = int(np.argmax(np.abs(np.diff(values))))
        return float(values[at]), float(values[at + 1])

    def growth(self, records: int) -> tuple[float, float] | None:
        """Return the growth per record before and after the onset, as fractions.

        Fewer records after the onset count only if they move faster than any before it.
        """
        after = self.after[:records]
        if len(after) < MIN_MOVING or min(self.before.min(), after.min()) <= 0:
            return None
        if len(after) < records and not self._moves_faster(after):
            return None
        # From the older half: a slow change is found late. A jump at the onset is not growth.
        half = len(self.before) // 2
        earlier = float(np.log(self.before[half] / self.before[0])) / half
        return earlier, float(np.log(after[-1] / after[0])) / (len(after) - 1)

    def _moves_faster(self, after: FloatArray) -> bool:
        """Return whether all changes after the onset go one way and exceed every one before."""
        changes = np.diff(np.log(after))
        largest = float(np.abs(np.diff(np.log(self.before))).max())
        return bool((changes > largest).all() or (changes < -largest).all())


def deviation(values: FloatArray) -> float:
    """Return the robust standard deviation; never 0."""
    middle = median(values.tolist())
    # A floor for signals that never moved, so that any change of them is many deviations.
    floor = 1e-9 * max(abs(middle), 1e-9)
    return max(sigma_around(middle, values.tolist()), floor)


def view_signal(context: IncidentContext, signal: str) -> SignalView | None:
    """Return the signal around the onset; None if it has too few values on one side."""
    column = context.block.column(signal)
    row, shown = context.onset_row, context.shown_row
    before = slice(max(row - RECORDS, 0), row)
    after = slice(row, shown + RECORDS)
    values = column.values[before][column.finite[before]]
    later = column.values[after][column.present[after]]
    # What follows a NaN is a consequence of it.
    later = later[: int(np.argmin(np.isfinite(later)))] if not np.isfinite(later).all() else later
    if len(values) < MIN_BEFORE or not len(later):
        return None
    lead = min(int(column.present[row:shown].sum()), len(later) - 1)
    return SignalView(signal, values, later[lead:], later[:lead])


# Inputs other than single signals.


@dataclass(frozen=True, slots=True)
class _Input:
    """How the input of one parameter is found."""

    find: Callable[[IncidentContext], Any]
    """Returns None if it was not recorded."""
    label: str
    """What a report calls it."""
    prefix: str | None = None
    """How the names of its signals begin, if it is made of several."""


def _views(prefix: str, label: str) -> _Input:
    def find(context: IncidentContext) -> tuple[SignalView, ...] | None:
        names = [name for name in context.block.columns if name.startswith(prefix)]
        after = slice(context.onset_row, context.shown_row + NONFINITE_RECORDS)
        if any(context.block.column(name).nonfinite[after].any() for name in names):
            return None  # how far the others moved says nothing beside one that is not finite
        views = (view_signal(context, name) for name in names)
        return tuple(item for item in views if item is not None) or None

    return _Input(find, label, prefix)


def _has_resumed(context: IncidentContext) -> Observed | None:
    if begins_again(context):
        return answered(signals.LR, True, "the learning rate begins again from 0")
    found = resumed(context)
    # A loss that is where the run began may be a new start that nothing else shows.
    return (
        found
        if found.is_yes or (found.is_no and not context.incident.facts.started_again)
        else None
    )


def _experiments(context: IncidentContext) -> Mapping[str, tuple[str, str]] | None:
    """Return answer and sentence of each experiment that was made for the incident, by its name."""
    first, last = context.incident.onset.step, context.incident.last.step + NEAR_STEPS
    found = {
        str(facts.get("name")): (str(facts.get("answer")), str(facts.get("sentence")))
        for event in context.block.events
        if event.kind == EXPERIMENT and first <= event.step <= last and (facts := event.facts)
    }
    return found or None


def _norm_drifts(context: IncidentContext) -> tuple[Finding, ...]:
    findings = context.incident.findings
    return tuple(f for f in findings if f.symptom == Symptom.NORM_DRIFT and "growth" in f.facts)


INPUTS: Mapping[str, _Input] = {
    "param_norms": _views(f"{signals.PARAM_NORM}/", f"{signals.PARAM_NORM} by group"),
    "update_norms": _views(f"{signals.UPDATE_NORM}/", f"{signals.UPDATE_NORM} by group"),
    "m_norms": _views(signals.ADAM_M_NORM, signals.ADAM_M_NORM),
    "v_norms": _views(signals.ADAM_V_NORM, signals.ADAM_V_NORM),
    "activations": _views(signals.ACTIVATION_RMS, f"{signals.ACTIVATION_RMS.rstrip('/')} by block"),
    "norm_drifts": _Input(_norm_drifts, "norm_drifts"),
    "resumed": _Input(_has_resumed, "events"),
    "dtype": _Input(dtype_of, "dtype"),
    "ranks": _Input(lambda context: context.facts.ranks, "ranks"),
    "settings": _Input(lambda context: context.facts.settings or None, "settings"),
    "experiments": _Input(_experiments, "experiments"),
    "onset_row": _Input(lambda context: context.onset_row, "step"),
    "onset_step": _Input(lambda context: context.incident.onset.step, "onset_step"),
    "context": _Input(lambda context: context, signals.LOSS),
    "proof_of_hardware": _Input(
        lambda context: proof_of_hardware(context.incident, context.block), "bits of the state"
    ),
}
"""By the name of the parameter; any other name is that of a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One yes/no statement about the records around an incident."""

    id: str
    statement: str
    source: str
    symptoms: tuple[str, ...]
    """A finding with one of these symptoms in the incident answers it with yes."""
    opening: bool
    """Only the finding that opened the incident does so."""
    signal: str
    """What it is about, for a report."""
    function: RuleFunction[YesNo | None]
    """Its parameters are the inputs."""

    def sentence(self, result: Observed) -> str:
        """Return what was seen in a sentence; an observation may be one that stands alone."""
        text = result.observation
        return text if text[:1].isupper() else f"{self.statement}: {text}"

    def __call__(self, context: IncidentContext, inputs: "Inputs | None" = None) -> Observed:
        """Observe; not recorded where an input is missing or the records do not suffice.

        `inputs` are those of the other observations on the same incident.
        """
        inputs = Inputs(context) if inputs is None else inputs
        finding = context.first_finding(*self.symptoms, opening=self.opening)
        if finding is not None:
            text = f"{finding.signal} {digits(finding.value)}"
            text += f" at step {finding.step}{context.caveat_of(finding)}"
            return answered(finding.signal, True, text)
        signal = self.signal
        try:
            found = self.function.call(inputs.__getitem__)
        except TooFewRecords:
            return too_few(signal)
        if isinstance(found, Missing):
            return _missing(context, found.names[0])
        return too_few(signal) if found is None else answered(signal, *found)


def observation(
    statement: str,
    *,
    source: str,
    symptoms: tuple[Symptom, ...] = (),
    opening: bool = False,
    signal: str = "",
) -> Callable[[Callable[..., YesNo | None]], Observation]:
    """Make an observation of a function; its name becomes the id.

    It is about its first input, unless it names another signal.
    """

    def make(function: Callable[..., YesNo | None]) -> Observation:
        rule = RuleFunction.of(function)
        return Observation(
            id=function.__name__,
            statement=statement,
            source=source,
            symptoms=symptoms,
            opening=opening,
            signal=signal or _label(rule.needs[0]),
            function=rule,
        )

    return make


class Inputs(dict[str, Any]):
    """The inputs of all observations on one incident, by their names; each is found once.

    None is an input that was not recorded.
    """

    def __init__(self, context: IncidentContext) -> None:
        super().__init__()
        self._context = context

    def __missing__(self, name: str) -> Any:
        find = INPUTS[name].find if name in INPUTS else partial(view_signal, signal=name)
        found = self[name] = find(self._context)
        return found


def _label(name: str) -> str:
    return INPUTS[name].label if name in INPUTS else name


def _missing(context: IncidentContext, name: str) -> Observed:
    """Return why an input is missing: never recorded, or not often enough around the onset."""
    prefix = INPUTS[name].prefix if name in INPUTS else None
    columns = context.block.columns
    names = [name] if prefix is None else [n for n in columns if n.startswith(prefix)]
    label = _label(name)
    if any(context.block.column(name).recorded for name in names):
        return too_few(label)
    return unrecorded(label, f"{label} not recorded")
