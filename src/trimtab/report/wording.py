"""Causes, reasons and events in words: the sentences that all views share."""

from collections.abc import Iterator, Sequence
from typing import Any

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, Event
from trimtab.core.causes import Cause
from trimtab.core.events import (
    BUFFER_REPAIRED,
    EXPERIMENT,
    NOT_UNDONE,
    NOTE,
    RELAUNCH,
    ROLLBACK_PROPOSED,
    SETTING_CHANGED,
    TRIAL,
    UNDO,
    UNDO_OUTCOME,
)
from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.jsonable import number_from_json
from trimtab.core.signals import LOSS, REWARD
from trimtab.core.text import clause, compared_losses, counted, digits
from trimtab.explain.causes.by_evidence import WORTH_SAYING, would_decide
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.explain.evidence.checks import Observed
from trimtab.explain.measures import compute_discards
from trimtab.journal.news import INCIDENT
from trimtab.report.batch_section import batch_lines
from trimtab.report.run_report import RunReport

MIN_RUNNER_UP = 0.1
"""A second cause that is less probable is not shown."""

MAX_SEEN = 3
"""Observations shown for each incident: those that decided."""

SAID_BY = {"lr_jumped": "rate_multiplied", "loss_nonfinite": "nan_in_range"}
"""Observations that another one says with more: they are not shown beside it."""

MAX_PLACES = 12
"""Steps listed of incidents that are like the one explained."""

MAX_BATCH_LINES = 2
"""Lines about the batches of an incident; the post-mortem has all."""

QUIET = frozenset({INCIDENT, TRIAL, "state saved", "checkpoint", "evaluation", "gate armed"})
"""Kinds of events that every healthy run has."""

_ACTS = frozenset(
    {
        EXPERIMENT,
        UNDO,
        UNDO_OUTCOME,
        NOT_UNDONE,
        ROLLBACK_PROPOSED,
        "step discarded",
        "gradient scaled down",
        RELAUNCH,
        "proposal",  # runs before 0.4
        "answer",
    }
)
"""Kinds of events by which a run responded to an incident."""

_AFTER = 64
"""Ticks after an incident in which its remedy is still checked."""

_MAX_CHARS = 300


def percent(probability: float) -> str:
    """Return a probability to the nearest 10 %: the lab's measurement is not finer."""
    if probability == 1.0:
        return "certain"
    if probability > 0.9:
        return "over 90 %"
    return "under 5 %" if probability < 0.05 else f"about {100 * rounded(probability):.0f} %"


def rounded(probability: float) -> float:
    return round(10 * probability) / 10


def certainty(diagnosis: Diagnosis) -> float | None:
    """Return how probable the named cause is; None if it was not weighed, as in the textbook."""
    named = (h for h in diagnosis.hypotheses if h.cause is not None and h.cause == diagnosis.cause)
    return next((hypothesis.probability for hypothesis in named), None)


def cause_text(diagnosis: Diagnosis) -> str:
    probability = certainty(diagnosis)
    said = "" if probability is None else f"{percent(probability)}: "
    return f"{said}{diagnosis.root_cause}"


def possible_cause(diagnosis: Diagnosis) -> Cause | None:
    """Return what comes first where no cause is named, if it is worth a mention."""
    first = diagnosis.ranking.first if diagnosis.ranking else None
    return first.cause if first is not None and first.probability >= WORTH_SAYING else None


def short_cause(diagnosis: Diagnosis) -> str:
    """Return id and title of the cause: "F02 long-tail or degenerate tokens, about 80 %"."""
    if diagnosis.cause is None and diagnosis.other_cause:
        return diagnosis.other_cause
    if diagnosis.cause is None:
        possible = possible_cause(diagnosis)
        like = "" if possible is None else f", possibly {possible.label}"
        return f"not known{like}"
    probability = certainty(diagnosis)
    said = "" if probability is None else f", {percent(probability)}"
    return f"{diagnosis.cause.label}{said}"


def likeness(diagnosis: Diagnosis) -> tuple[str | None, ...]:
    """Return what incidents that are shown as one have in common: class, cause and action."""
    cause = diagnosis.cause.id if diagnosis.cause else None
    return diagnosis.incident_class, cause, diagnosis.action.kind, diagnosis.dismissal


def group_alike(diagnoses: Sequence[Diagnosis]) -> list[tuple[Diagnosis, ...]]:
    """Return incidents of one class, cause and action together; each group's worst comes first."""
    groups: dict[tuple[str | None, ...], list[Diagnosis]] = {}
    for one in diagnoses:
        groups.setdefault(likeness(one), []).append(one)
    return [tuple(group) for group in groups.values()]


def origin_text(report: RunReport) -> str:
    """Return what was judged, and by which rules."""
    return f"{report.format}, {report.block.extent}, {report.rules} rules"


def discards_text(block: Block) -> str:
    """Return which steps were kept out of the weights; "" if none was."""
    discards = compute_discards(block)
    if discards is None or not discards.count:
        return ""
    steps = counted(discards.count, "step")
    return f"{steps} discarded, kept out of the weights: {discards.where()}"


def unsaved_text(run: RunReport) -> str:
    """Return how many steps of a run that ended badly are in no checkpoint; "" if none."""
    if not run.bad_end:
        return ""
    # A checkpoint is named by the step that comes next.
    saved = max(run.facts.checkpoints, default=-1)
    count = len({step for step in run.block.step.tolist() if step >= saved})
    verb = "is" if count == 1 else "are"
    return f"{counted(count, 'step')} {verb} in no known checkpoint" if count else ""


def open_offer(block: Block) -> Event | None:
    """Return the latest offer of an older state; None if there was none, or an undo followed."""
    events = [event for event in block.events if event.kind in (ROLLBACK_PROPOSED, UNDO)]
    return events[-1] if events and events[-1].kind == ROLLBACK_PROPOSED else None


def proposal_text(block: Block) -> str:
    """Return the offer of an older state that nobody took; "" if there is none."""
    offer = open_offer(block)
    return f"step {offer.step:,}: {event_text(offer)}" if offer else ""


def losses_text(diagnosis: Diagnosis) -> str:
    """Return the loss before and at its worst, as far as they are known: "4.36 -> 5.97"."""
    known = (diagnosis.symptoms.loss_before, diagnosis.symptoms.loss_peak)
    return " -> ".join(digits(value) for value in known if value is not None)


def measure_name(diagnosis: Diagnosis) -> str:
    """Return what tells how an incident went: the reward of a policy, else the loss."""
    return LOSS if diagnosis.incident.facts.reward is None else REWARD


def change_text(diagnosis: Diagnosis) -> str:
    """Return how the reward or the loss went: "loss 4.36 -> 5.97"; "" if the loss did not rise."""
    reward, symptoms = diagnosis.incident.facts.reward, diagnosis.symptoms
    if reward is not None:
        return f"{REWARD} {digits(reward.before)} -> {digits(reward.now)}"
    before, peak = symptoms.loss_before, symptoms.loss_peak
    if peak is None or (before is not None and peak <= before):
        return ""
    return f"{LOSS} {losses_text(diagnosis)}"


def action_name(diagnosis: Diagnosis) -> str:
    """Return what to do in a word; "none" where the instruction says so."""
    return "none" if diagnosis.has_nothing_to_do else diagnosis.action.kind.value


def fix_text(diagnosis: Diagnosis) -> str:
    """Return what fixes the cause; where nothing is to be done, it asks for nothing.

    "" if nothing is to be done and no cause is named.
    """
    remedy = diagnosis.remedy
    if not diagnosis.has_nothing_to_do or remedy.startswith("None"):
        return remedy
    if diagnosis.cause is None:
        return ""
    if diagnosis.cause is Cause.LR_DISCONTINUITY:
        return f"None needed if the jump was meant; else {clause(remedy)}."
    return f"To keep it from coming back: {clause(remedy)}."


def tone(diagnosis: Diagnosis) -> str:
    """Return `alarm` for what needs an act, `good` for what needs nothing, else `warn`."""
    if diagnosis.needs_nothing:
        return "good"
    return "warn" if diagnosis.action.kind is ActionKind.WAIT else "alarm"


def explanation_lines(alike: Sequence[Diagnosis], run: RunReport) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line about the worst of some incidents.

    The evidence comes first, then the cause, what to do now, and what fixes it.
    """
    diagnosis, *others = alike
    for finding in diagnosis.incident.findings:
        package = run.package_of(finding)
        if package:
            yield "found", _foreign(finding, package)
    has_look_alikes = diagnosis.ranking is not None and len(diagnosis.ranking.alike) > 1
    for name, text in (
        ("note", diagnosis.dismissal),
        ("change", diagnosis.changes[-1] if diagnosis.changes else ""),
        ("alike", _places(others)),
        *(("seen", text) for text in deciding_lines(diagnosis, MAX_SEEN)),
        *(("batch", line) for line in batch_lines(diagnosis)[:MAX_BATCH_LINES]),
        ("cause", cause_text(diagnosis)),
        # The sentence about the cause names those that look like it.
        ("or", "" if has_look_alikes else runner_up(diagnosis)),
        ("do", diagnosis.action.instruction),
        ("fix", fix_text(diagnosis)),
    ):
        if text:
            yield name, text


def _places(diagnoses: Sequence[Diagnosis]) -> str:
    """Return where incidents began, in order: "3 more, at steps 900, 1,200, 4,100"."""
    if not diagnoses:
        return ""
    steps = [f"{step:,}" for step in sorted(one.incident.onset.step for one in diagnoses)]
    shown = ", ".join(steps[:MAX_PLACES]) + (" ..." if len(steps) > MAX_PLACES else "")
    return f"{len(steps)} more, at {'step' if len(steps) == 1 else 'steps'} {shown}"


def _foreign(finding: Finding, package: str) -> str:
    expected = "" if finding.expected is None else f", expected {digits(finding.expected)}"
    return (
        f"{finding.symptom}: {finding.signal} {digits(finding.value)} at step {finding.step:,}"
        f"{expected}, by {finding.detector} ({package})"
    )


def steps_text(incident: Incident) -> str:
    """Return where an incident was: "step 900", or "steps 650 to 1,060"."""
    first, end = incident.onset.step, incident.end
    is_open = incident.incident_class is IncidentClass.OPEN  # then its end is that of the next one
    if end is None or end.step <= first or is_open:
        return f"step {first:,}"
    return f"steps {first:,} to {end.step:,}"


def asked(diagnosis: Diagnosis) -> Iterator[tuple[str, str, Observed]]:
    """Yield everything that was asked: its id, the question, and the answer."""
    if diagnosis.walk is not None:
        for answer in diagnosis.walk.answers:
            yield answer.id, answer.question, answer.result
    if diagnosis.ranking is not None:
        for id, result in diagnosis.ranking.results.items():
            yield id, ALL_OBSERVATIONS[id].statement, result


def deciding_lines(diagnosis: Diagnosis, count: int) -> list[str]:
    """Return what decided about the first cause, the heaviest observation first.

    If nothing speaks for one, these are the questions that were answered with yes.
    """
    ranking = diagnosis.ranking
    if ranking is None:
        seen = [r.observation for _, _, r in asked(diagnosis) if r.is_yes]
        return list(dict.fromkeys(seen))[:count]
    chosen = ranking.deciding(count + 1) if ranking.first.cause else ()
    chosen = chosen or tuple(id for id, result in ranking.results.items() if result.is_yes)
    said = {  # a finding may answer several: the first says it
        ranking.results[id].observation: ALL_OBSERVATIONS[id].sentence(ranking.results[id])
        for id in reversed(chosen)
        if SAID_BY.get(id) not in chosen
    }
    return list(reversed(said.values()))[:count]


def runner_up(diagnosis: Diagnosis) -> str:
    """Return the second cause and what would decide between it and the first; "" if negligible."""
    ranking = diagnosis.ranking
    if ranking is None or ranking.named is None or len(ranking.candidates) < 2:
        return ""
    second = ranking.candidates[1]
    if second.cause is None or second.probability < MIN_RUNNER_UP:
        return ""
    said = f"possible, {percent(second.probability)}: {second.cause.phrase}"
    return f"{said}; {would_decide(ranking)}"


def event_text(event: Event) -> str:
    """Return what happened, without the step."""
    facts = event.facts
    if event.kind == NOTE:
        author = f"{facts['author']}: " if "author" in facts else ""
        text = f"{author}{facts.get('text', '')}"
    elif event.kind in (EXPERIMENT, BUFFER_REPAIRED, ROLLBACK_PROPOSED):
        text = str(facts.get("sentence", ""))
    elif event.kind == UNDO:
        text = f"{facts.get('why')}; {facts.get('updates_lost')} updates are lost"
        if "how_sure" in facts:
            text = f"to step {facts.get('to_step')}: {text} ({facts['how_sure']})"
    elif event.kind == UNDO_OUTCOME:
        has_helped = "it works" if facts.get("helped") else "it has not helped"
        text = compared_losses(facts)
        if facts.get("showed") is not False or not facts.get("helped"):
            text = f"{has_helped}: {text}"
        if "gained" in facts:
            text += f"; it gained {_value(facts['gained'])}"
        if "because" in facts:
            text = f"{has_helped}: {facts['because']}"
    elif event.kind == RELAUNCH:
        text = str(facts.get("reason", ""))
    elif event.kind == SETTING_CHANGED:
        before, after = (_value(facts.get(name)) for name in ("before", "after"))
        text = f"{facts.get('name')} changed from {before} to {after}"
    elif event.kind == "step discarded" and facts.get("reasons"):
        loss, usual = (_value(facts.get(name, "not known")) for name in ("loss", "usual_loss"))
        text = f"{_value(facts['reasons'])}; loss {loss}, usually {usual}"
    elif event.kind == NOT_UNDONE:
        text = f"{facts.get('why')}; nothing is undone: {facts.get('because')}"
    else:
        text = ", ".join(f"{name} {_value(value)}" for name, value in facts.items())
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."


def acts_of(incident: Incident, block: Block) -> Iterator[Event]:
    """Yield what the run did during an incident and shortly after it."""
    end = (incident.end or incident.last).tick + _AFTER
    for event in block.events:
        if event.kind in _ACTS and incident.onset.tick <= event.tick <= end:
            yield event


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(map(_value, value))
    as_number = number_from_json(value)
    return str(value) if as_number is None else digits(as_number)
