"""The post-mortem of one incident, as a Markdown document."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from trimtab.core.block import Column
from trimtab.core.signals import (
    GRAD_NORM,
    LOSS,
    LR,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
)
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.answers import answers_about
from trimtab.explain.evidence.check import counted, number
from trimtab.explain.measures.goodput import count_lost
from trimtab.report.batch_section import batch_section, unusual_tokens_text
from trimtab.report.escaping import escape_markdown
from trimtab.report.event_text import acts_of, event_text
from trimtab.report.reasons import (
    discriminating_section,
    fix_text,
    hypotheses_section,
    questions_section,
)

if TYPE_CHECKING:
    from trimtab.report.run_report import RunReport

UNKNOWN = "not recorded"

_SHOWN = (LOSS, GRAD_NORM, LR, TOKEN_RARITY, UNIQUE_TOKEN_SHARE)
_VERIFIED_NATS, _VERIFIED_DEVIATIONS = 0.05, 4
"""How far above the usual a loss may be after a fix: 0.05 nats, or what noise reaches. Source: the
template of the textbook; a normal value is over 4 deviations once in 30,000 records."""
_MAX_ACTS = 20
_OFFSETS = (-3, -2, -1, 0, 1, 2, 3, 5, 10, 20, 50)
"""Records around the onset that the table shows: every one close to it, fewer further away."""


def write_postmortem(diagnosis: Diagnosis, run: "RunReport", *, figure: str | None = None) -> str:
    """The post-mortem as Markdown; `figure` is the file of its figure, if there is one."""
    lines = [f"# {postmortem_title(diagnosis)}", "", postmortem_summary(diagnosis, run)]
    if figure is not None:
        lines += ["", f"![Signals around the incident]({figure})"]
    for heading, body in postmortem_sections(diagnosis, run).items():
        lines += ["", f"## {heading}", "", *body]
    return "\n".join(lines) + "\n"


def postmortem_sections(diagnosis: Diagnosis, run: "RunReport") -> dict[str, list[str]]:
    """The sections by heading, each as lines of Markdown."""
    return {
        "Symptoms": list(_symptoms(diagnosis)),
        "Evidence": list(_evidence(diagnosis, run)),
        "Hypotheses, ranked": list(hypotheses_section(diagnosis)),
        "Discriminating evidence": list(discriminating_section(diagnosis)),
        "The questions asked": list(questions_section(diagnosis)),
        "Root cause": [diagnosis.root_cause, *_verified(diagnosis, run)],
        "Class": list(_class(diagnosis)),
        "Action": [f"{diagnosis.action.instruction} {diagnosis.action.reason}"],
        "What was done": list(_done(diagnosis, run)),
        "Smallest remedy": [fix_text(diagnosis)],
        "Verification": list(_verification(diagnosis, run)),
        "Cost": list(_cost(diagnosis, run)),
        "Lesson": [diagnosis.lesson],
    }


def postmortem_title(diagnosis: Diagnosis) -> str:
    """The heading, as Markdown."""
    incident = diagnosis.incident
    kind, outcome = escape_markdown(str(incident.symptoms[0])), diagnosis.outcome
    return f"Incident {incident.number}: {kind} at step {incident.onset.step}, {outcome}"


def postmortem_summary(diagnosis: Diagnosis, run: "RunReport") -> str:
    """What happened in two or three sentences, as Markdown."""
    symptoms, incident = diagnosis.symptoms, diagnosis.incident
    until = f"ended at step {incident.end.step}" if incident.end else "was open when the log ended"
    discarded = diagnosis.cost.discarded
    kept_out = ""
    if discarded is not None and discarded.count:
        steps = counted(discarded.count, "step")
        kept_out = f" Discarded, so not in the weights: {steps} ({discarded.where()})."
    return (
        f"In {escape_markdown(run.source)} the loss was {number(symptoms.loss_before)} and reached "
        f"{number(symptoms.loss_peak)} at step {incident.peak.step}. The incident began at step "
        f"{incident.onset.step} and {until}.{kept_out} Judged by the {run.rules} rules from the "
        "log alone."
    )


def _symptoms(diagnosis: Diagnosis) -> Iterator[str]:
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    position = symptoms.data_position
    rows = (
        ("onset, step", str(incident.onset.step)),
        ("loss before (average over 50 records)", number(symptoms.loss_before)),
        ("peak loss", f"{number(symptoms.loss_peak)} at step {incident.peak.step}"),
        ("loss 50 records after the peak", number(symptoms.loss_after_50)),
        ("loss 500 records after the peak", number(symptoms.loss_after_500)),
        ("gradient norm before", number(symptoms.grad_norm_before)),
        ("gradient norm, largest, before clipping", number(symptoms.grad_norm_peak)),
        ("learning rate at the onset", number(symptoms.lr)),
        ("dtype", symptoms.dtype or UNKNOWN),
        ("batch position at the onset", UNKNOWN if position is None else str(position)),
        ("rarity of the batch's tokens (mean -log p)", number(symptoms.token_rarity)),
        ("share of distinct tokens in the batch", number(symptoms.unique_token_share)),
        ("unusual tokens in the batch, by name", _unusual_tokens(diagnosis)),
        ("findings in total", str(incident.num_findings)),
    )
    yield "| what | value |"
    yield "| --- | --- |"
    for name, value in rows:
        yield f"| {name} | {value} |"


def _unusual_tokens(diagnosis: Diagnosis) -> str:
    named = unusual_tokens_text(diagnosis.batch)
    return UNKNOWN if named is None else escape_markdown(named)


def _evidence(diagnosis: Diagnosis, run: "RunReport") -> Iterator[str]:
    yield f"- Run: {escape_markdown(run.facts.link or run.source)}"
    yield f"- Batch range: {_positions(diagnosis, run)}"
    yield from batch_section(diagnosis, run.facts.ranks)
    yield from _experiments(diagnosis, run)
    yield ""
    for note in run.notes:
        yield f"- Note: {escape_markdown(note)}"
    yield from _findings(diagnosis, run)
    yield from _layers(diagnosis)
    yield ""
    onset = run.block.row_of(diagnosis.incident.onset.tick)
    start = max(onset + _OFFSETS[0], 0)
    near = run.block[start : onset + _OFFSETS[-1] + 1]
    names = [name for name in _SHOWN if near.column(name).recorded]
    yield f"| step | {' | '.join(names)} |"
    yield f"| ---: |{' ---: |' * len(names)}"
    for row in (onset + offset - start for offset in _OFFSETS):
        if 0 <= row < len(near):
            cells = (_value(near.column(name), row) for name in names)
            mark = " (onset)" if row == onset - start else ""
            yield f"| {near.step[row]}{mark} | {' | '.join(cells)} |"


def _experiments(diagnosis: Diagnosis, run: "RunReport") -> Iterator[str]:
    for name, facts in answers_about(diagnosis.incident, run.block).items():
        sentence, steps = escape_markdown(str(facts.get("sentence"))), facts.get("steps")
        yield f"- Verified by experiment ({escape_markdown(name)}, {steps} steps): {sentence}"


def _verified(diagnosis: Diagnosis, run: "RunReport") -> Iterator[str]:
    """The answers again where the cause is named: a reader looks there first."""
    answers = list(_experiments(diagnosis, run))
    if answers:
        yield from ("", *answers)


def _findings(diagnosis: Diagnosis, run: "RunReport") -> Iterator[str]:
    yield "- Findings:"
    yield ""
    yield "| step | symptom | signal | value | expected | limit | detector |"
    yield "| ---: | --- | --- | ---: | ---: | ---: | --- |"
    for finding in diagnosis.incident.findings:
        package = run.package_of(finding)
        source = f"{finding.detector} ({package})" if package else finding.detector
        names = (str(finding.symptom), finding.signal)
        values = (finding.value, finding.expected, finding.limit)
        cells = [
            str(finding.step),
            *map(escape_markdown, names),
            *("" if value is None else number(value) for value in values),
            escape_markdown(source),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _layers(diagnosis: Diagnosis) -> Iterator[str]:
    layers = diagnosis.layers
    if not layers:
        yield f"- Norms by layer: {UNKNOWN}"
        return
    yield "- Norms by layer, the last one before the onset and the first one after it:"
    yield ""
    yield "| signal | before | after |"
    yield "| --- | ---: | ---: |"
    for layer in layers:
        signal = escape_markdown(layer.signal)
        yield f"| {signal} | {number(layer.before)} | {number(layer.after)} |"


def _value(column: Column, row: int) -> str:
    return number(float(column.values[row])) if column.present[row] else ""


def _positions(diagnosis: Diagnosis, run: "RunReport") -> str:
    incident = diagnosis.incident
    rows = slice(run.block.row_of(incident.onset.tick), run.block.row_of(incident.last.tick) + 1)
    known = run.block.data_position[rows]
    known = known[known >= 0]
    return f"{np.min(known)} to {np.max(known)}" if len(known) else UNKNOWN


def _class(diagnosis: Diagnosis) -> Iterator[str]:
    named, incident = diagnosis.incident_class, diagnosis.incident
    if named is None and incident.rolled_back:
        yield (
            f"Rolled back after {incident.records} records: what would have become of it is not "
            "known."
        )
    elif named is None:
        yield f"Open: the log ends {incident.records} records after the onset, too early to tell."
    else:
        yield f"{named.value.capitalize()}, {incident.records} records long."


def _done(diagnosis: Diagnosis, run: "RunReport") -> Iterator[str]:
    acts = list(acts_of(diagnosis.incident, run.block))
    if not acts:
        yield "Nothing: the run went on by itself, or what was done is not in its journal."
    for event in acts[:_MAX_ACTS]:
        kind, text = escape_markdown(event.kind), escape_markdown(event_text(event))
        yield f"- Step {event.step}: {kind}{': ' if text else ''}{text}"
    if len(acts) > _MAX_ACTS:
        yield f"- {len(acts) - _MAX_ACTS} more events are in the journal."


def _verification(diagnosis: Diagnosis, run: "RunReport") -> Iterator[str]:
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    seed = UNKNOWN if run.facts.seed is None else str(run.facts.seed)
    until = incident.last.step + (incident.last.step - incident.onset.step) + 500
    yield f"Run again with the remedy and the same seed ({seed}) past step {until}, then check:"
    yield ""
    yield "```"
    yield f"trimtab diagnose NEW_LOG    # no incident between {incident.onset.step} and {until}"
    yield "```"
    if symptoms.loss_before is not None:
        noise = _VERIFIED_DEVIATIONS * (incident.baseline_deviation or 0.0)
        limit = number(symptoms.loss_before + max(_VERIFIED_NATS, noise))
        above = f"{_VERIFIED_DEVIATIONS} deviations" if noise > _VERIFIED_NATS else _VERIFIED_NATS
        yield ""
        step = incident.peak.step
        yield f"The loss at step {step} must stay under {limit} ({above} above before)."


def _cost(diagnosis: Diagnosis, run: "RunReport") -> Iterator[str]:
    cost, price = diagnosis.cost, run.price_per_hour
    yield f"- Steps from the onset to the end: {cost.steps}"
    yield f"- Steps lost (not applied, or taken back): {count_lost(diagnosis.incident, run.block)}"
    if cost.discarded is not None:
        where = f" ({cost.discarded.where()})" if cost.discarded.count else ""
        yield f"- Steps discarded: {cost.discarded.count}{where}"
    time = UNKNOWN if cost.seconds is None else f"{cost.seconds / 60:.1f} minutes"
    yield f"- Time from the onset to the end: {time}"
    yield f"- Tokens: {UNKNOWN if cost.tokens is None else f'{cost.tokens:.3g}'}"
    if price is None:
        yield "- Cost: not known, no price was given (`--price`)"
    elif cost.seconds is None:
        yield "- Cost: not known, the time was not recorded"
    else:
        yield f"- Cost of this time: ${cost.seconds / 3600 * price:,.2f} at ${price:,.2f} an hour"
