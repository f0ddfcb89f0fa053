"""Observation: one thing that can be seen around an incident, whatever its cause.

An observation is a function whose parameters name its inputs. It is made where all of them were
recorded, and it may return None where the records do not suffice to answer:

    @observation("The optimizer's second moment falls", source="...")
    def v_fell(adam_v_norm: SignalView) -> Seen | None:

A parameter is the name of a signal, or one of the names in `INPUTS`. A finding of a detector can
answer it, too: `symptoms=(Symptom.LR_JUMP,)`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.findings import Finding, Symptom
from trimtab.core.records.probe_events import DECISION
from trimtab.core.signals import (
    ACTIVATION_RMS,
    ADAM_M_NORM,
    ADAM_V_NORM,
    LOSS,
    LOSS_SCALE,
    PARAM_NORM,
    UPDATE_NORM,
)
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence import spike
from trimtab.explain.evidence.answers import NEAR_STEPS, answers_about
from trimtab.explain.evidence.check import (
    CheckResult,
    Outcome,
    answered,
    caveat,
    first_finding,
    number,
    too_few,
    unrecorded,
)
from trimtab.explain.evidence.signal_view import MIN_BEFORE, RECORDS, SignalView


@dataclass(frozen=True, slots=True)
class Seen:
    """The answer of an observation."""

    yes: bool
    text: str
    """The numbers behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One yes/no statement about the records around an incident."""

    id: str
    statement: str
    source: str
    inputs: tuple[str, ...]
    symptoms: tuple[str, ...]
    """A finding with one of these symptoms in the incident answers it with yes."""
    opening: bool
    """Only the finding that opened the incident does so."""
    function: Callable[..., Seen | None]

    def __call__(self, context: IncidentContext) -> CheckResult:
        """Look; not recorded where an input is missing or the records do not suffice."""
        finding = first_finding(context, *self.symptoms, opening=self.opening)
        if finding is not None:
            text = f"{finding.symptom}: {finding.signal} {number(finding.value)}"
            text += f" at step {finding.step}{caveat(context, finding)}"
            return answered(finding.signal, True, text)
        values = {name: find_input(context, name) for name in self.inputs}
        for name, value in values.items():
            if value is None:
                signal = SIGNAL_OF.get(name, name)
                is_recorded = _is_recorded(context, name)
                return too_few(signal) if is_recorded else _unrecorded(signal)
        signal = SIGNAL_OF.get(self.inputs[0], self.inputs[0])
        seen = self.function(**values)
        if seen is None:
            return too_few(signal)
        return answered(signal, seen.yes, seen.text)


def observation(
    statement: str, *, source: str, symptoms: tuple[Symptom, ...] = (), opening: bool = False
) -> Callable[[Callable[..., Seen | None]], Observation]:
    """Make an observation of a function; its name becomes the id."""

    def make(function: Callable[..., Seen | None]) -> Observation:
        return Observation(
            id=function.__name__,
            statement=statement,
            source=source,
            inputs=tuple(inspect.signature(function).parameters),
            symptoms=symptoms,
            opening=opening,
            function=function,
        )

    return make


def find_input(context: IncidentContext, name: str) -> Any:
    """The input of this name; None if it was not recorded."""
    return INPUTS[name](context) if name in INPUTS else view(context, name)


def view(context: IncidentContext, signal: str) -> SignalView | None:
    """The signal around the onset; None if it has too few values on one side."""
    column = context.block.column(signal)
    row = context.onset_row
    before = slice(max(row - RECORDS, 0), row)
    after = slice(row, row + RECORDS)
    values = column.values[before][column.finite[before]]
    later = column.values[after][column.present[after]]
    # What follows a NaN is a consequence of it.
    later = later[: int(np.argmin(np.isfinite(later)))] if not np.isfinite(later).all() else later
    if len(values) < MIN_BEFORE or not len(later):
        return None
    return SignalView(signal, values, later)


def _is_recorded(context: IncidentContext, name: str) -> bool:
    """Whether an input has values, though not enough of them around the onset."""
    prefix = PREFIXES.get(name)
    names = [name] if prefix is None else [n for n in context.block.columns if n.startswith(prefix)]
    return any(context.block.column(name).recorded for name in names)


def _unrecorded(signal: str) -> CheckResult:
    return unrecorded(signal, f"{signal} not recorded")


def _views(prefix: str) -> Callable[[IncidentContext], tuple[SignalView, ...] | None]:
    def find(context: IncidentContext) -> tuple[SignalView, ...] | None:
        names = [name for name in context.block.columns if name.startswith(prefix)]
        found = [item for item in (view(context, name) for name in names) if item is not None]
        return tuple(found) or None

    return find


def _has_resumed(context: IncidentContext) -> bool | None:
    outcome = spike.resumed(context).outcome
    return None if outcome is Outcome.NOT_RECORDED else outcome is Outcome.YES


def _dtype(context: IncidentContext) -> str | None:
    if context.facts.dtype is None and context.recorded(LOSS_SCALE):
        return "fp16"
    return context.facts.dtype


def _answer(experiment: str) -> Callable[[IncidentContext], Mapping[str, Any] | None]:
    return lambda context: answers_about(context.incident, context.block).get(experiment)


def _norm_drifts(context: IncidentContext) -> tuple[Finding, ...]:
    """The findings of weight norms whose growth has changed."""
    findings = context.incident.findings
    return tuple(f for f in findings if f.symptom == Symptom.NORM_DRIFT and "growth" in f.facts)


def _held_settings(context: IncidentContext) -> tuple[str, ...] | None:
    """What a decision about this incident held at the value of a snapshot; None if nothing."""
    first, last = context.incident.onset.step, context.incident.last.step + NEAR_STEPS
    for event in reversed(context.block.events):
        held = event.facts.get("hold")
        is_decision = event.kind == DECISION and first <= event.step <= last
        if is_decision and isinstance(held, list | tuple) and held:
            return tuple(map(str, held))
    return None


EXPERIMENTS = ("again", "first-nonfinite", "fp32", "half", "earlier", "next")
"""The experiments whose answers are observations, as the parameter `NAME_answer`."""

PREFIXES: Mapping[str, str] = {
    "param_norms": f"{PARAM_NORM}/",
    "update_norms": f"{UPDATE_NORM}/",
    "m_norms": ADAM_M_NORM,
    "v_norms": ADAM_V_NORM,
    "activations": ACTIVATION_RMS,
}
"""Inputs of several signals, by how the names of these begin."""

INPUTS: Mapping[str, Callable[[IncidentContext], Any]] = {
    **{name: _views(prefix) for name, prefix in PREFIXES.items()},
    "norm_drifts": _norm_drifts,
    "resumed": _has_resumed,
    "dtype": _dtype,
    "ranks": lambda context: context.facts.ranks,
    "onset_row": lambda context: context.onset_row,
    "onset_step": lambda context: context.incident.onset.step,
    "context": lambda context: context,
    "held_settings": _held_settings,
    "went_well_again": lambda context: context.went_well_again,
    **{f"{name.replace('-', '_')}_answer": _answer(name) for name in EXPERIMENTS},
}
"""Inputs other than single signals, by the name of the parameter."""

SIGNAL_OF: Mapping[str, str] = {
    "param_norms": f"{PARAM_NORM} by group",
    "update_norms": f"{UPDATE_NORM} by group",
    "m_norms": ADAM_M_NORM,
    "v_norms": ADAM_V_NORM,
    "activations": f"{ACTIVATION_RMS.rstrip('/')} by block",
    "resumed": "events",
    "onset_row": "step",
    "context": LOSS,
    "held_settings": "settings that differed",
    "went_well_again": "the same steps, done again",
    **{f"{name.replace('-', '_')}_answer": f"experiment {name}" for name in EXPERIMENTS},
}
"""What such an input is called in a report."""
