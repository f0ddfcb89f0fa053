"""IncidentContext: one incident with the records and events around it; what explanations read."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, Column, Event, FloatArray
from trimtab.core.events import (
    EXPERIMENT,
    NOT_APPLIED,
    NOT_UNDONE,
    ROLLBACK_PROPOSED,
    SETTING_CHANGED,
    UNDO,
    is_announced,
)
from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.jsonable import number_from_json
from trimtab.core.run import RunFacts
from trimtab.core.signals import LOSS, Quality
from trimtab.core.text import digits
from trimtab.detect.textbook import TEXTBOOK_THRESHOLDS, TextbookThresholds
from trimtab.journal.batches.batch_report import BatchReport

RECORDS_BEFORE = 4096
RECORDS_AFTER = 1024
"""How far the context reaches around an incident: the textbook's windows are 200 records and 500
after the peak; with telemetry every 10 steps that is 2,000 and more."""

MAX_OTHERS = 8
"""How many incidents that began alike are compared with one: more say no more."""

NEAR_STEPS = 16
"""An undo may come shortly before the onset or after the last record of its incident. Source: the
margin with which onsets are dated."""

ONSET_MARGIN_STEPS = 8
"""An incident may have begun this many steps before its onset. Source: the study of recovery, where
onsets that were dated by the loss were up to 8 steps late."""

CONSTANT_RECORDS, HELD_RECORDS = 64, 8
"""Values without a change before and after one that make a column a setting. Chosen."""

RAMP = 0.25
"""The fraction by which equal steps of a setting may differ, as they are logged rounded. Chosen."""

SWITCHED_BEFORE, SWITCHED_AFTER = 4, 12
"""Records before and after an onset within which a setting must have changed to be what the loss
shows. Chosen: onsets are rather dated too early."""

NO_SETTING = frozenset(
    {signals.LOSS, signals.LOSS_SCALE, signals.DISCARDED, *signals.NO_CURVES, *signals.CLOCKS}
)
"""What may be constant and is no setting, or has a cause of its own if it changes."""

_CONSEQUENCE = re.compile(r"(?i)epoch|skip|overflow|nan|inf\b|error|restart|norm|lr\b|learning")
"""Names of columns that change because of what happened, or whose change has its own cause."""

MIN_NOT_FINITE = 8
"""Values without a finite one among them that are no lapse. Chosen."""

CURED_RECORDS = 8
"""Finite losses after an undo that show that it has cured a run. Chosen: more than the steps that
were not finite before one."""

CHANGE_STEPS = 32
"""Steps before an onset in which a change on purpose may be what the loss shows. Chosen: a changed
rate takes a dozen steps to show."""


@dataclass(frozen=True, kw_only=True)
class IncidentContext:
    """One incident with the records around it."""

    block: Block
    """The records around the incident, from well before its onset to well after its last one."""
    incident: Incident
    facts: RunFacts
    similar: int = 0
    """How many other incidents of the run began with the same symptom."""
    others: tuple["IncidentContext", ...] = ()
    """The nearest of them whose records are known."""
    batch: BatchReport | None = None
    """What was kept of its batch."""
    harmed: tuple[tuple[int, int], ...] = ()
    """First and last step of the other incidents that left harm in the weights."""
    config: TextbookThresholds = TEXTBOOK_THRESHOLDS

    @classmethod
    def of(
        cls,
        incident: Incident,
        run: Block,
        facts: RunFacts,
        *,
        similar: Sequence[Incident] = (),
        until: int | None = None,
    ) -> "IncidentContext":
        """Return the context of an incident in a run, which may have lost some of its records.

        From the tick `until` on, records belong to another incident.
        """
        start = max(run.row_of(incident.onset.tick) - RECORDS_BEFORE, 0)
        stop = run.row_of(incident.last.tick) + RECORDS_AFTER
        stop = stop if until is None else min(stop, run.row_of(until))
        first = int(run.tick[0]) if len(run) else 0
        known = [other for other in similar if other.onset.tick > first]
        nearest = sorted(known, key=lambda other: abs(other.number - incident.number))[:MAX_OTHERS]
        return cls(
            block=run[start:stop],
            incident=incident,
            facts=facts,
            similar=len(similar),
            others=tuple(cls.of(other, run, facts) for other in nearest),
        )

    @cached_property
    def onset_row(self) -> int:
        """The row of the onset; if that record was lost, the row after it."""
        return self.block.row_of(self.incident.onset.tick)

    @cached_property
    def shown_row(self) -> int:
        """The row where the incident shows: the onset, without the lead of a warning before it."""
        findings = self.incident.findings
        opening = [f for f in findings if f.tick == findings[0].tick]
        ticks = [f.tick if f.onset_tick is None else f.onset_tick for f in opening]
        first = self.block.row_of(min(ticks)) if ticks else self.onset_row
        return max(self.onset_row, min(first, self.last_row))

    @cached_property
    def far_up_row(self) -> int:
        """The first row from the onset on whose loss is twice the highest of before; else the last.

        Where a loss is near 0 or below, that is no measure.
        """
        before, losses = self.before(LOSS, 64), self.during(LOSS)
        if not len(before) or before.min() <= 0:
            return self.last_row
        is_far = losses.present & ~(losses.values <= 2 * before.max())
        return self.onset_row + int(np.argmax(is_far)) if is_far.any() else self.last_row

    @property
    def rows_of_rise(self) -> slice:
        """The rows in which the loss begins to rise; large gradients after them follow from it."""
        first, last = max(self.onset_row - 4, 0), max(self.far_up_row, self.onset_row) + 1
        return slice(first, min(self.shown_row + 4, last))

    @property
    def has_onset(self) -> bool:
        row = self.onset_row
        return row < len(self.block) and int(self.block.tick[row]) == self.incident.onset.tick

    @cached_property
    def last_row(self) -> int:
        """The row of the last record that was judged while the incident was open."""
        return self.block.row_of(self.incident.last.tick)

    def recorded(self, signal: str) -> bool:
        """Return whether the signal has any value in the incident or shortly before it."""
        around = slice(max(self.onset_row - self.config.rise_records, 0), self.last_row + 1)
        return self.block.column(signal)[around].recorded

    def during(self, signal: str) -> Column:
        """Return the signal from the onset to the last record of the incident."""
        return self.block.column(signal)[self.onset_row : self.last_row + 1]

    def before(self, signal: str, records: int, *, within_steps: int | None = None) -> FloatArray:
        """Return the last `records` finite values before the onset, at most `within_steps` old."""
        column = self.block.column(signal)[: self.onset_row]
        chosen = column.finite
        if within_steps is not None:
            chosen &= self.block.step[: self.onset_row] >= self.incident.onset.step - within_steps
        return column.values[chosen][-records:]

    def at_onset(self, signal: str) -> float | None:
        """Return the value at the onset; None if it was not recorded there."""
        return self.at(self.onset_row, signal)

    def at(self, row: int, signal: str) -> float | None:
        """Return the value in a row of the incident; None if it, or the onset, is not recorded."""
        column = self.block.column(signal)
        return float(column.values[row]) if self.has_onset and column.present[row] else None

    def worst(self, signal: str) -> float | None:
        """Return the largest value from the onset on; a non-finite one is larger than any other."""
        column = self.during(signal)
        bad = column.values[column.nonfinite]
        return float(bad[0]) if len(bad) else self.largest_finite(signal)

    def largest_finite(self, signal: str) -> float | None:
        """Return the largest finite value from the onset on."""
        column = self.during(signal)
        values = column.values[column.finite]
        return float(values.max()) if len(values) else None

    def loss_after(self, records: int) -> float | None:
        """Return the loss this many records after the peak; None if the log ends before."""
        column = self.block.column(LOSS)
        start = self.block.row_of(self.incident.peak.tick)
        rows = np.flatnonzero(column.present[start:])
        return float(column.values[start + rows[records]]) if len(rows) > records else None

    def first_finding(self, *symptoms: str, opening: bool = False) -> Finding | None:
        """Return the first finding with one of these symptoms; only the very first if `opening`."""
        findings = self.incident.findings[:1] if opening else self.incident.findings
        return next((finding for finding in findings if finding.symptom in symptoms), None)

    def caveat(self, signal: str) -> str:
        """Return what qualifies a signal that is not raw; empty if it is."""
        quality = self.block.quality(signal)
        return "" if quality is Quality.RAW else f" (recorded as {quality.label})"

    def caveat_of(self, finding: Finding) -> str:
        """Return what qualifies a finding: the quality of its signal, its confidence."""
        quality = self.caveat(finding.signal)
        if finding.confidence < 1:
            return f"{quality}, confidence {100 * finding.confidence:.0f} %"
        return quality


def checkpoint_before(context: IncidentContext) -> str | None:
    """Return the name of the newest sound checkpoint from before the onset; None without one."""
    last = context.incident.onset.step - ONSET_MARGIN_STEPS
    sound = [
        step
        for step in context.facts.checkpoints
        if step <= last
        and not any(first - ONSET_MARGIN_STEPS < step <= end for first, end in context.harmed)
    ]
    return context.facts.checkpoints[max(sound)] if sound else None


_RESPONSES = re.compile(r"(?i)response|completion|prompt|token")
"""Names of columns of a policy that is a language model."""


def has_responses(context: IncidentContext) -> bool:
    """Return whether prompts, groups or responses were recorded, as of a language model."""
    recorded = [name for name, column in context.block.columns.items() if column.recorded]
    return any(name in signals.OF_RESPONSES or _RESPONSES.search(name) for name in recorded)


def has_scaler(context: IncidentContext) -> bool:
    """Return whether a loss scale is at work: it was recorded, or steps were skipped by it."""
    scale = context.block.column(signals.LOSS_SCALE)
    # bf16 runs of Megatron print a constant scale of 1.
    is_scaled = bool((scale.values[scale.finite] > 1).any())
    return is_scaled or any(
        event.kind == NOT_APPLIED and event.facts.get("why") == "overflow"
        for event in context.block.events
    )


def dtype_of(context: IncidentContext) -> str | None:
    """Return what the run computes in; None if that is not known, as of fp32 weights beside a
    scaler."""
    if not has_scaler(context):
        return context.facts.dtype
    return "fp16" if context.facts.dtype in (None, "fp16") else None


REMEMBERED = 4
"""Batches that a run remembers, and tries in an experiment (`state.batches`)."""


def has_experiments(context: IncidentContext) -> bool:
    """Return whether the run makes experiments: it was given its `batch_loss`."""
    return any(event.kind == EXPERIMENT for event in context.block.events)


def finite_batch_loss(context: IncidentContext) -> float | None:
    """Return what `batch_loss` gave for the batches around a recorded loss that is not finite, if
    that was finite with no undo between; else None."""
    loss, events = context.during(LOSS), context.block.events
    if not loss.nonfinite.any():
        return None
    first = int(context.block.step[context.onset_row + int(np.argmax(loss.nonfinite))])
    near = [event for event in events if first <= event.step < first + REMEMBERED]
    found = (event.facts for event in near if event.kind == EXPERIMENT)
    again = next((facts for facts in found if facts.get("name") == "again"), {})
    value = number_from_json(again.get("loss"))
    has_undo = any(event.kind == UNDO for event in near)
    return None if has_undo or value is None or not math.isfinite(value) else value


def cured_by_undo(context: IncidentContext) -> Event | None:
    """Return the undo after which a run of non-finite steps was finite, with other batches."""
    loss, incident = context.block.column(LOSS), context.incident
    steps = context.block.step
    is_bad = loss.nonfinite & (steps >= incident.onset.step)
    for event in context.block.events:
        is_near = incident.onset.step <= event.step <= incident.last.step
        if event.kind != UNDO or not is_near or event.facts.get("is_ordered"):
            continue
        before, after = is_bad & (steps <= event.step), steps > event.step
        num_finite = int((loss.finite & after).sum())
        if before.sum() > 1 and num_finite >= CURED_RECORDS and not (is_bad & after).any():
            return event
    return None


def changes_near(context: IncidentContext) -> Iterator[str]:
    """Yield what was changed on purpose around the onset, as announced or as code did it."""
    onset = context.incident.onset.step
    for event in context.block.events:
        facts = event.facts
        if not onset - CHANGE_STEPS <= event.step <= onset + NEAR_STEPS:
            continue
        if event.kind == SETTING_CHANGED:
            before, after = (_value(facts.get(name)) for name in ("before", "after"))
            yield f"{facts.get('name')} was changed from {before} to {after}"
        elif is_announced(event.kind):
            said = facts.get("what") or ", ".join(f"{name} {facts[name]}" for name in facts)
            yield f"{event.kind} announced at step {event.step:,}" + (f" ({said})" if said else "")
    yield from switched(context)


def switched(context: IncidentContext) -> Iterator[str]:
    """Yield the logged settings that were switched at the onset: "mask_ratio went from 0.5 to 1".

    A setting is a column that had one value for long, and has another one from there on or moves
    by equal steps, as the weight of a KL term that is warmed up.
    """
    block, onset = context.block, context.onset_row
    loss = block.column(LOSS)
    before = loss.values[:onset][loss.finite[:onset]][-CONSTANT_RECORDS:]
    at_onset = loss.values[onset : onset + 1][loss.finite[onset : onset + 1]]
    # What changes after the loss has risen did not raise it.
    latest = 0 if len(before) and (at_onset > before.max()).any() else SWITCHED_AFTER
    for name, column in block.columns.items():
        if name in NO_SETTING or _CONSEQUENCE.search(name):
            continue
        rows = np.flatnonzero(column.finite[: onset + SWITCHED_AFTER + HELD_RECORDS])
        values = column.values[rows]
        switches = np.flatnonzero(np.diff(values)) + 1
        at = int(switches[-1]) if len(switches) else 0
        since = int(switches[-2]) if len(switches) > 1 else 0
        is_setting = at - since >= CONSTANT_RECORDS and len(values) - at >= HELD_RECORDS
        if is_setting and -SWITCHED_BEFORE <= int(rows[at]) - onset <= latest:
            then, now = digits(float(values[at - 1])), digits(float(values[at]))
            yield f"{name} went from {then} to {now} at step {int(block.step[rows[at]]):,}"
            continue
        first = int(switches[0]) if len(switches) else 0
        moves = np.diff(values[max(first - 1, 0) :][: HELD_RECORDS + 1])
        is_held = first >= CONSTANT_RECORDS and len(moves) == HELD_RECORDS
        is_ramp = is_held and np.ptp(moves) <= RAMP * abs(float(moves.mean()))
        if is_ramp and -CHANGE_STEPS <= int(rows[first]) - onset <= latest:
            then = digits(float(values[first - 1]))
            yield f"{name} ramps from {then} since step {int(block.step[rows[first]]):,}"


OFFER_STEPS = 100
"""Steps for which a proposed rollback can be taken. Source: `live.recover.trial`."""


def undo_until(context: IncidentContext) -> int | None:
    """Return the step up to which `guard.undo()` takes a rollback that was proposed in the
    incident; None if none is open."""
    first, now = context.incident.onset.step - NEAR_STEPS, int(context.block.step.max(initial=0))
    kinds = (ROLLBACK_PROPOSED, UNDO)
    events = [event for event in context.block.events if event.kind in kinds]
    if not events or events[-1].kind != ROLLBACK_PROPOSED:
        return None
    until = events[-1].step + OFFER_STEPS
    return until if events[-1].step >= first and now < until else None


def num_scaled_down(context: IncidentContext) -> int:
    """Return how many gradients of the incident the gate has scaled down."""
    first, last = context.incident.onset.step, context.incident.last.step
    scaled = (e for e in context.block.events if e.kind == "gradient scaled down")
    return sum(first <= event.step <= last for event in scaled)


def not_finite_since(context: IncidentContext) -> Iterator[str]:
    """Yield the signals that have not been finite since an alarm, where the loss is back."""
    if context.incident.incident_class is not IncidentClass.RECOVERED:
        return
    found = [one for one in context.incident.findings if one.value is not None]
    first = {one.signal: one.tick for one in found[::-1] if not math.isfinite(one.value or 0.0)}
    for signal, tick in first.items():
        since = context.block.column(signal)[context.block.row_of(tick) :]
        if signal != LOSS and since.present.sum() >= MIN_NOT_FINITE and not since.finite.any():
            yield signal


def _value(value: object) -> str:
    number = number_from_json(value)
    return str(value) if number is None else digits(number)


def proof_of_hardware(incident: Incident, block: Block) -> str | None:
    """Return how a fault of the hardware was proven near an incident; None if none was."""
    proofs = (event for event in _proofs(incident, block) if event.facts.get("is_hardware"))
    return next((str(event.facts.get("why", "")) for event in proofs), None)


def proof_of_harm(incident: Incident, block: Block) -> Event | None:
    """Return the event in which harm to weights or optimizer was proven near an incident."""
    proofs = _proofs(incident, block)
    return next((e for e in proofs if str(e.facts.get("how_sure")).startswith("certain")), None)


def _proofs(incident: Incident, block: Block) -> Iterator[Event]:
    first, last = incident.onset.step - NEAR_STEPS, incident.last.step + NEAR_STEPS
    for event in block.events:
        if event.kind in (UNDO, NOT_UNDONE) and first <= event.step <= last:
            yield event
