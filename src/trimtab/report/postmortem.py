"""The post-mortem of one incident, as Markdown that a person reads to the end."""

from collections.abc import Iterator

import numpy as np

from trimtab.core.causes import Standing
from trimtab.core.signals import (
    GRAD_NORM,
    LOSS,
    LR,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
)
from trimtab.diagnose.evidence.check import number
from trimtab.policy.incident_report import IncidentReport
from trimtab.report.plain import markdown
from trimtab.report.run_report import RunReport

UNKNOWN = "not recorded"

_SHOWN = (LOSS, GRAD_NORM, LR, TOKEN_RARITY, UNIQUE_TOKEN_SHARE)
_AROUND = (-3, -2, -1, 0, 1, 2, 3, 5, 10, 20, 50)
"""Records around the onset that the table shows: close by one at a time, then wider."""


def write_postmortem(opinion: IncidentReport, account: RunReport) -> str:
    """The whole document."""
    sections = (
        ("Symptoms", _symptoms(opinion)),
        ("Evidence", _evidence(opinion, account)),
        ("Hypotheses, ranked", _hypotheses(opinion)),
        ("Discriminating evidence", _discriminating(opinion)),
        ("The questions asked", _walk(opinion)),
        ("Root cause", iter([opinion.diagnosis.root_cause])),
        ("Class", _class(opinion)),
        ("Action", iter([f"{opinion.action.instruction} {opinion.action.reason}"])),
        ("Smallest remedy", iter([opinion.diagnosis.remedy])),
        ("Verification", _verification(opinion, account)),
        ("Cost", _cost(opinion, account)),
        ("Lesson", iter([opinion.diagnosis.lesson])),
    )
    lines = [f"# {_title(opinion)}", "", _summary(opinion, account)]
    for heading, body in sections:
        lines += ["", f"## {heading}", "", *body]
    return "\n".join(lines) + "\n"


def _title(opinion: IncidentReport) -> str:
    incident = opinion.diagnosis.incident
    named = opinion.diagnosis.incident_class
    kind = markdown(incident.symptoms[0])
    return f"Incident {incident.number}: {kind} at step {incident.onset.step}, {named or 'open'}"


def _summary(opinion: IncidentReport, account: RunReport) -> str:
    symptoms, incident = opinion.diagnosis.symptoms, opinion.diagnosis.incident
    until = f"ended at step {incident.end.step}" if incident.end else "was not seen to end"
    discarded = opinion.diagnosis.cost.discarded
    kept_out = ""
    if discarded is not None and discarded.count:
        kept_out = (
            f" {discarded.count:,} of its steps were discarded and never reached the weights "
            f"({discarded.where()})."
        )
    return (
        f"In {markdown(account.source)} the loss stood at {number(symptoms.loss_before)} and "
        f"went to {number(symptoms.loss_peak)} at step {incident.peak.step}. The incident began "
        f"at step {incident.onset.step} and {until}.{kept_out} Judged by the {account.rules} rules "
        "from the log alone."
    )


def _symptoms(opinion: IncidentReport) -> Iterator[str]:
    incident, symptoms = opinion.diagnosis.incident, opinion.diagnosis.symptoms
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
        ("unusual tokens in the batch, by name", UNKNOWN),
        ("findings in all", str(incident.num_findings)),
    )
    yield "| what | value |"
    yield "| --- | --- |"
    for name, value in rows:
        yield f"| {name} | {value} |"


def _evidence(opinion: IncidentReport, account: RunReport) -> Iterator[str]:
    positions = _positions(opinion, account)
    yield f"- Run: {markdown(account.facts.link or account.source)}"
    yield f"- Batch range: {positions}"
    yield f"- Token histogram of the offending batch: {UNKNOWN}"
    yield from _layers(opinion)
    yield ""
    names = [name for name in _SHOWN if account.block.column(name).recorded]
    yield f"| step | {' | '.join(names)} |"
    yield f"| ---: |{' ---: |' * len(names)}"
    onset = account.block.row_of(opinion.diagnosis.incident.onset.tick)
    for row in (onset + away for away in _AROUND):
        if 0 <= row < len(account.block):
            cells = (_value(account, name, row) for name in names)
            mark = " (onset)" if row == onset else ""
            yield f"| {account.block.step[row]}{mark} | {' | '.join(cells)} |"


def _layers(opinion: IncidentReport) -> Iterator[str]:
    layers = opinion.diagnosis.layers
    if not layers:
        yield f"- Norms by layer: {UNKNOWN}"
        return
    yield "- Norms by layer, last before the onset and first from it on:"
    yield ""
    yield "| signal | before | from the onset on |"
    yield "| --- | ---: | ---: |"
    for layer in layers:
        yield f"| {markdown(layer.signal)} | {number(layer.before)} | {number(layer.after)} |"


def _value(account: RunReport, name: str, row: int) -> str:
    column = account.block.column(name)
    return number(float(column.values[row])) if column.present[row] else ""


def _positions(opinion: IncidentReport, account: RunReport) -> str:
    incident = opinion.diagnosis.incident
    rows = slice(
        account.block.row_of(incident.onset.tick), account.block.row_of(incident.last.tick) + 1
    )
    known = account.block.data_position[rows]
    known = known[known >= 0]
    return f"{np.min(known)} to {np.max(known)}" if len(known) else UNKNOWN


def _hypotheses(opinion: IncidentReport) -> Iterator[str]:
    for place, hypothesis in enumerate(opinion.diagnosis.hypotheses, start=1):
        cause = f"{hypothesis.cause.id} {hypothesis.cause.title}: " if hypothesis.cause else ""
        statement = hypothesis.statement
        if hypothesis.cause is None:
            step = opinion.diagnosis.incident.peak.step
            statement += f" (first seen at step {step}; which tensor is {UNKNOWN})"
        yield f"{place}. **{hypothesis.standing}**: {cause}{statement}."
        for item in hypothesis.evidence:
            yield f"   - panel {markdown(item.signal)}: {markdown(item.observation)}"


def _discriminating(opinion: IncidentReport) -> Iterator[str]:
    hypotheses = opinion.diagnosis.hypotheses
    told = False
    for place, hypothesis in enumerate(hypotheses, start=1):
        for item in hypothesis.evidence:
            if item.favors is not None:
                told = True
                way = "favors" if item.favors else "speaks against"
                seen = f"{markdown(item.signal)}: {markdown(item.observation)}"
                yield f"- Panel {seen}: {way} H{place}."
    if not told:
        yield "None of the panels that could tell the hypotheses apart was recorded."
    open_ones = [
        (place, item.signal)
        for place, hypothesis in enumerate(hypotheses, start=1)
        if hypothesis.standing is Standing.OPEN
        for item in hypothesis.evidence
    ]
    for place, panel in open_ones:
        yield f"- Panel {markdown(panel)} was not recorded: it would decide H{place}."


def _walk(opinion: IncidentReport) -> Iterator[str]:
    yield "| question | answer | seen | then |"
    yield "| --- | --- | --- | --- |"
    for answer in opinion.diagnosis.walk.answers:
        seen = markdown(answer.result.observation)
        yield (
            f"| {answer.id} {answer.question} | {answer.result.outcome} | {seen} "
            f"| {answer.goes_to} |"
        )


def _class(opinion: IncidentReport) -> Iterator[str]:
    named, incident = opinion.diagnosis.incident_class, opinion.diagnosis.incident
    if named is None:
        yield f"Open: the log ends {incident.records} records after the onset, too early to say."
    else:
        yield f"{named.value.capitalize()}, {incident.records} records long."


def _verification(opinion: IncidentReport, account: RunReport) -> Iterator[str]:
    incident, symptoms = opinion.diagnosis.incident, opinion.diagnosis.symptoms
    seed = UNKNOWN if account.facts.seed is None else str(account.facts.seed)
    until = incident.last.step + (incident.last.step - incident.onset.step) + 500
    yield f"Run again with the remedy and the same seed ({seed}) past step {until}, then:"
    yield ""
    yield "```"
    yield f"trimtab diagnose NEW_LOG    # no incident between {incident.onset.step} and {until}"
    yield "```"
    if symptoms.loss_before is not None:
        limit = number(symptoms.loss_before + 0.05)
        yield ""
        yield f"and the loss at step {incident.peak.step} stays under {limit} (0.05 above before)."


def _cost(opinion: IncidentReport, account: RunReport) -> Iterator[str]:
    cost, price = opinion.diagnosis.cost, account.price_per_hour
    yield f"- Steps: {cost.steps}"
    if cost.discarded is not None:
        where = f" ({cost.discarded.where()})" if cost.discarded.count else ""
        yield f"- Steps discarded: {cost.discarded.count}{where}"
    yield f"- Time: {UNKNOWN if cost.seconds is None else f'{cost.seconds / 60:.1f} minutes'}"
    yield f"- Tokens: {UNKNOWN if cost.tokens is None else f'{cost.tokens:.3g}'}"
    if price is None:
        yield "- Money: not known, no price was given"
    elif cost.seconds is None:
        yield "- Money: not known, the time was not recorded"
    else:
        yield f"- Money: {cost.seconds / 3600 * price:,.2f} at {price:,.2f} an hour"
