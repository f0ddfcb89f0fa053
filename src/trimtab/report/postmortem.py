"""The post-mortem of one incident, as a document.

Figures, then what happened, why trimtab believes so, what to do, how to verify it and what it cost.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from trimtab.core.causes import AnyCause, Standing
from trimtab.core.events import NOTE, UNDO
from trimtab.core.incidents import IncidentClass
from trimtab.core.signals import CLOCK, GRAD_NORM, LOSS, LR, TOKEN_RARITY, UNIQUE_TOKEN_SHARE
from trimtab.core.text import counted, digits
from trimtab.explain.causes.ranking import SUPPORT
from trimtab.explain.comparison import Check, StepWindow
from trimtab.explain.context import proof_of_hardware
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.explain.evidence.checks import ObservedOutcome
from trimtab.explain.time_use import count_lost
from trimtab.report import wording
from trimtab.report.batch_section import batch_contents, batch_items, unusual_tokens_text
from trimtab.report.document import (
    BulletList,
    CodeBlock,
    Content,
    Figure,
    ListItem,
    Paragraph,
    ReportDocument,
    ReportSection,
    ReportTable,
    RichText,
    Strong,
    bullets,
    prose,
    to_markdown,
)
from trimtab.report.figures import draw_incident, draw_tokens
from trimtab.report.run_report import RunReport

UNKNOWN = "not recorded"

INCIDENT_FIGURE, TOKEN_FIGURE = "incident.svg", "tokens.svg"
"""The files of the figures, beside the post-mortem."""

VERIFY_FILE = "verify.toml"
"""The checks of its section "Verification", for `trimtab compare --verify`."""

_SHOWN = (LOSS, GRAD_NORM, LR, TOKEN_RARITY, UNIQUE_TOKEN_SHARE)
_VERIFIED_NATS, _VERIFIED_DEVIATIONS = 0.05, 4
"""How far above the usual a loss may be after a fix: 0.05 nats, or what noise reaches. Source: the
template of the textbook; a normal value is over 4 deviations once in 30,000 records."""
_VERIFIED_NORM = 5
"""How many times the usual gradient norm is allowed after a fix. Source: the worked example of the
textbook allows 3.0 where 0.6 is usual."""
_RULED_OUT = -3.0
"""An observation that is 20 times rarer under a cause (log likelihood ratio) rules it out."""
_MAX_ACTS = 20
_MAX_DECIDING = 6
_OFFSETS = (-3, -2, -1, 0, 1, 2, 3, 5, 10, 20, 50)
"""Records around the onset that the table shows: every one close to it, fewer further away."""


def build_postmortem(diagnosis: Diagnosis, run: RunReport) -> ReportDocument:
    """Return the post-mortem of one incident of a run."""
    alternatives = list(_alternatives(diagnosis, run))
    # What a reader wants first; the long tables come last.
    sections: dict[str, Iterable[Content]] = {
        "In short": [ReportTable(("", ""), tuple(in_short(diagnosis, run)))],
        "Root cause": _root_cause(diagnosis, run),
        "Symptoms": _symptoms(diagnosis, run),
        "Hypotheses, ranked": _hypotheses(diagnosis),
        "Discriminating evidence": _discriminating(diagnosis),
        "What was done": [_done(diagnosis, run)],
        "Action": [Paragraph(prose(f"{diagnosis.action.instruction} {diagnosis.action.reason}"))],
        "Smallest remedy": [Paragraph(prose(diagnosis.remedy))],
        "Cost": [bullets(_cost(diagnosis, run))],
        **({"What else could be done": [bullets(alternatives)]} if alternatives else {}),
        "Verification": _verification(diagnosis, run),
        "Lesson": [Paragraph(prose(diagnosis.lesson))],
        "Follow-ups": [_follow_ups(diagnosis, run)],
        "Class": [Paragraph(_class(diagnosis))],
        "Evidence": _evidence(diagnosis, run),
        "The questions asked": _questions(diagnosis),
    }
    return ReportDocument(
        title=_title(diagnosis, run),
        lead=_summary(diagnosis, run),
        sections=tuple(ReportSection(name, tuple(body)) for name, body in sections.items()),
        figures=tuple(_figures(diagnosis, run)),
    )


def write_postmortem(diagnosis: Diagnosis, run: RunReport) -> str:
    return to_markdown(build_postmortem(diagnosis, run), with_figures=False)


def _figures(diagnosis: Diagnosis, run: RunReport) -> Iterator[Figure]:
    """Yield the signals around the incident, and the histogram of its tokens."""
    yield Figure(
        "Signals around the incident",
        INCIDENT_FIGURE,
        lambda is_file: draw_incident(diagnosis, run.block, is_file=is_file),
    )
    batch = diagnosis.batch
    if batch is not None and any(batch.histogram):
        yield Figure(
            "Tokens of the batch against those of the run",
            TOKEN_FIGURE,
            lambda is_file: draw_tokens(batch, is_file=is_file),
        )


def _title(diagnosis: Diagnosis, run: RunReport) -> str:
    """Return the incident with its time and run: it is read long after, among others."""
    incident = diagnosis.incident
    where = f"{_time(diagnosis, run) or 'time not recorded'}, run {Path(run.source).name}"
    what = f"{incident.main_symptom} at step {incident.onset.step}, {diagnosis.incident_class}"
    return f"Incident {incident.number}: {what} ({where})"


def _summary(diagnosis: Diagnosis, run: RunReport) -> str:
    symptoms, incident = diagnosis.symptoms, diagnosis.incident
    until = f"ended at step {incident.end.step}" if incident.end else "was open when the log ended"
    before = symptoms.loss_before
    was = "" if before is None else f"was {digits(before)} and "
    discarded = diagnosis.cost.discarded
    kept_out = ""
    if discarded is not None and discarded.count:
        steps = counted(discarded.count, "step")
        kept_out = f" Discarded, so not in the weights: {steps} ({discarded.where()})."
    return (
        f"In {run.source} the loss {was}reached {digits(symptoms.loss_peak)} at step "
        f"{incident.peak.step}. The incident began at step "
        f"{incident.onset.step} and {until}.{kept_out} Judged by the {run.rules} rules."
    )


def in_short(diagnosis: Diagnosis, run: RunReport) -> Iterator[tuple[str, str]]:
    """Yield an incident in five lines: what, when, why, what was done, what to do."""
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    peak = f"loss {digits(symptoms.loss_before)}, then {digits(symptoms.loss_peak)}"
    yield "what", f"{incident.main_symptom}, {peak}; {_became(diagnosis)}"
    time = _time(diagnosis, run)
    yield "when", f"{wording.steps_text(incident)}{', ' if time else ''}{time}"
    yield "why", wording.cause_text(diagnosis)
    yield "done", _done_in_short(diagnosis)
    yield "to do", diagnosis.action.instruction
    if diagnosis.dismissal:
        yield "note", diagnosis.dismissal


def _became(diagnosis: Diagnosis) -> str:
    """Return what became of the loss."""
    incident = diagnosis.incident
    if incident.incident_class is IncidentClass.RECOVERED and incident.end is not None:
        return f"recovered in {counted(incident.records, 'record')}"
    return _OUTCOMES[incident.incident_class]


_OUTCOMES = {
    IncidentClass.KEPT_OUT: "kept out of the weights",
    IncidentClass.RESTORED: "undone",
    IncidentClass.RECOVERED: "recovered",
    IncidentClass.SILENT: "the loss did not follow",
    IncidentClass.RECOVERING: "on its way back when the log ends",
    IncidentClass.PLATEAU: "learned nothing",
    IncidentClass.OPEN: "too early to say when the log ends",
    IncidentClass.LINGERING: "settled above its level",
    IncidentClass.COLLAPSED: "the reward is gone",
    IncidentClass.DIVERGENT: "did not recover",
    IncidentClass.DEAD: "did not recover",
}


def _time(diagnosis: Diagnosis, run: RunReport) -> str:
    """Return when the incident began; empty if the run has no clock."""
    clock = run.block.column(CLOCK)
    row = run.block.row_of(diagnosis.incident.onset.tick)
    if row >= len(clock.values) or not clock.finite[row]:
        return ""
    time = datetime.fromtimestamp(float(clock.values[row]), UTC)
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _done_in_short(diagnosis: Diagnosis) -> str:
    parts = []
    discarded, undone = diagnosis.cost.discarded, diagnosis.incident.facts.undone_updates
    if discarded is not None and discarded.count:
        parts.append(f"{counted(discarded.count, 'step')} discarded ({discarded.where()})")
    if undone:
        parts.append(f"{counted(undone, 'update')} undone")
    return ", ".join(parts) or "nothing, as far as is recorded"


def _symptoms(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    position, tokens = symptoms.data_position, symptoms.tokens
    rows = (
        ("onset, step", str(incident.onset.step)),
        ("loss before (average over 50 records)", digits(symptoms.loss_before)),
        ("peak loss", f"{digits(symptoms.loss_peak)} at step {incident.peak.step}"),
        ("loss 50 records after the peak", _loss_after(diagnosis, run, 50)),
        ("loss 500 records after the peak", _loss_after(diagnosis, run, 500)),
        ("gradient norm before", digits(symptoms.grad_norm_before)),
        ("gradient norm, largest, before clipping", digits(symptoms.grad_norm_peak)),
        ("learning rate at the onset", digits(symptoms.lr)),
        ("dtype", symptoms.dtype or UNKNOWN),
        ("tokens in the batch", UNKNOWN if tokens is None else f"{tokens:,.0f}"),
        ("batch position", UNKNOWN if position is None else str(position)),
        ("rarity of the batch's tokens (mean -log p)", digits(symptoms.token_rarity)),
        ("share of distinct tokens in the batch", digits(symptoms.unique_token_share)),
        ("unusual tokens in the batch, by name", unusual_tokens_text(diagnosis.batch) or UNKNOWN),
        ("findings in total", str(incident.num_findings)),
    )
    yield ReportTable(("what", "value"), rows)


def _loss_after(diagnosis: Diagnosis, run: RunReport, records: int) -> str:
    """Return the loss some records after the peak; where there is none, what became of it."""
    symptoms = diagnosis.symptoms
    value = symptoms.loss_after_50 if records == 50 else symptoms.loss_after_500
    is_lost = diagnosis.incident_class in (IncidentClass.DIVERGENT, IncidentClass.DEAD)
    if value is not None:
        return digits(value) + (", did not recover" if is_lost else "")
    left = len(run.block) - 1 - run.block.row_of(diagnosis.incident.peak.tick)
    if left >= records:
        return UNKNOWN
    ends = f"the log ends {counted(left, 'record')} after the peak"
    return f"did not recover; {ends}" if is_lost else ends


def _evidence(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    yield bullets(
        [
            f"Run: {run.facts.link or run.source}",
            f"Batch range: {_positions(diagnosis, run)}",
            *batch_items(diagnosis, run.facts.ranks),
            *_verified(diagnosis, run),
            *(f"Note: {note}" for note in run.notes),
        ]
    )
    if diagnosis.batch is not None:
        yield from batch_contents(diagnosis.batch)
    yield from _token_losses(diagnosis)
    yield Paragraph("Findings:")
    yield _findings(diagnosis, run)
    yield from _movers(diagnosis)
    yield from _layers(diagnosis)
    yield _records(diagnosis, run)


def _findings(diagnosis: Diagnosis, run: RunReport) -> ReportTable:
    rows = []
    for finding in diagnosis.incident.findings:
        package = run.package_of(finding)
        values = (finding.value, finding.expected, finding.limit)
        rows.append(
            (
                *(
                    str(finding.step),
                    ": ".join(filter(None, (finding.symptom, finding.forecast))),
                    finding.signal,
                ),
                *("" if value is None else digits(value) for value in values),
                f"{finding.detector} ({package})" if package else finding.detector,
            )
        )
    head = ("step", "symptom", "signal", "value", "expected", "limit", "detector")
    return ReportTable(head, tuple(rows), frozenset({0, 3, 4, 5}))


def _token_losses(diagnosis: Diagnosis) -> Iterator[Content]:
    """Yield what the histogram of token losses shows, and the sequences that it shows it for."""
    mode = diagnosis.second_mode
    if mode is None:
        return
    text = (
        f"Token losses have a second mode at {digits(mode.loss)} nats in step {mode.step}, beside "
        f"that at {digits(mode.first)}: {100 * mode.share:.2g} % of the tokens are above "
        f"{digits(mode.lowest)}, {100 * mode.usual_share:.2g} % usually."
    )
    found = () if diagnosis.batch is None else diagnosis.batch.rows
    inside = [str(row.row) for row in found if (row.max_token_loss or 0.0) >= mode.lowest]
    if inside and diagnosis.batch is not None and diagnosis.batch.step == mode.step:
        text += f" Sequences with tokens there: {', '.join(inside[:12])}."
    yield Paragraph(text)


def _movers(diagnosis: Diagnosis) -> Iterator[Content]:
    """Yield which layers moved first, and the signal of the first one over layers and steps."""
    chart = diagnosis.layer_map
    if chart is None:
        return
    first, *others = diagnosis.moves
    text = (
        f"Layer {first.layer} moved first: {first.signal} was {digits(first.ratio)} times its "
        f"usual value at step {first.step}, beyond all layers together."
    )
    if others:
        rest = (f"{move.layer} (step {move.step}, {move.signal})" for move in others[:4])
        text += f" Then: {', '.join(rest)}."
    yield Paragraph(text)
    near = chart.layers.index(first.layer)
    start = max(min(near - _MAP_LAYERS // 2, len(chart.layers) - _MAP_LAYERS), 0)
    rows = tuple(
        (chart.layers[at], *(digits(float(ratio)) for ratio in chart.ratios[at, -_MAP_STEPS:]))
        for at in range(start, min(start + _MAP_LAYERS, len(chart.layers)))
    )
    yield Paragraph(f"{chart.family.rstrip('/.')} by layer and step, in units of the usual value:")
    head = ("layer", *(str(step) for step in chart.steps[-_MAP_STEPS:]))
    yield ReportTable(head, rows, frozenset(range(len(head))))


_MAP_LAYERS, _MAP_STEPS = 12, 8
"""Layers and records that a post-mortem shows."""


def _layers(diagnosis: Diagnosis) -> Iterator[Content]:
    layers = diagnosis.layers
    if not layers:
        yield Paragraph(f"Norms by layer: {UNKNOWN}")
        return
    yield Paragraph("Norms by layer, the last one before the onset and the first one after it:")
    rows = ((layer.signal, digits(layer.before), digits(layer.after)) for layer in layers)
    yield ReportTable(("signal", "before", "after"), tuple(rows), frozenset({1, 2}))


def _records(diagnosis: Diagnosis, run: RunReport) -> ReportTable:
    """Return the records around the onset."""
    onset = run.block.row_of(diagnosis.incident.onset.tick)
    start = max(onset + _OFFSETS[0], 0)
    near = run.block[start : onset + _OFFSETS[-1] + 1]
    columns = {name: near.column(name) for name in _SHOWN if near.column(name).recorded}
    rows = []
    for row in (onset + offset - start for offset in _OFFSETS):
        if 0 <= row < len(near):
            mark = " (onset)" if row == onset - start else ""
            shown = columns.values()
            cells = (digits(float(c.values[row])) if c.present[row] else "" for c in shown)
            rows.append((f"{near.step[row]}{mark}", *cells))
    return ReportTable(("step", *columns), tuple(rows), frozenset(range(len(columns) + 1)))


def _positions(diagnosis: Diagnosis, run: RunReport) -> str:
    incident = diagnosis.incident
    rows = slice(run.block.row_of(incident.onset.tick), run.block.row_of(incident.last.tick) + 1)
    known = run.block.data_position[rows]
    # Positions that were not recorded are negative.
    known = known[known >= 0]
    return f"{np.min(known)} to {np.max(known)}" if len(known) else UNKNOWN


def _verified(diagnosis: Diagnosis, run: RunReport) -> list[str]:
    proof = proof_of_hardware(diagnosis.incident, run.block)
    return [] if proof is None else [f"Verified in memory: {proof}"]


def _hypotheses(diagnosis: Diagnosis) -> Iterator[Content]:
    items = []
    for hypothesis in diagnosis.hypotheses:
        cause = f"{hypothesis.cause.id} {hypothesis.cause.title}: " if hypothesis.cause else ""
        standing = str(hypothesis.standing)
        if hypothesis.probability is not None:
            # A sentence about a cause is a finding only where the cause is named.
            is_named = hypothesis.cause is not None and hypothesis.cause == diagnosis.cause
            share = wording.percent(hypothesis.probability)
            standing = share if is_named else f"possible, {share}"
        inner = []
        for item in hypothesis.evidence:
            weight = "" if item.weight is None else f" ({item.weight:+.1f})"
            inner.append(f"{item.signal}: {item.observation}{weight}")
        text = (Strong(standing), f": {cause}{hypothesis.statement}.")
        items.append(ListItem(text, tuple(inner)))
    yield BulletList(tuple(items), is_numbered=True)
    if diagnosis.ranking is not None:
        yield Paragraph(
            "In brackets: how much an observation says for (+) or against (-) the cause, as a log "
            "likelihood ratio measured in the lab."
        )


def _discriminating(diagnosis: Diagnosis) -> Iterator[Content]:
    """Yield what decided between the hypotheses, and what would."""
    ranking = diagnosis.ranking
    if ranking is None:
        yield from _discriminating_by_tree(diagnosis)
        return
    numbers: dict[AnyCause | None, str] = {
        h.cause: f"H{n}" for n, h in enumerate(diagnosis.hypotheses, 1) if h.cause
    }
    shown = {numbers[c.cause]: c.weights for c in ranking.candidates if c.cause in numbers}
    spread = {
        id: max(weights) - min(weights)
        for id in ranking.results
        if len(weights := [said.get(id, 0.0) for said in shown.values()]) > 1
    }
    lines = []
    for id in sorted(spread, key=lambda id: -spread[id])[:_MAX_DECIDING]:
        result = ranking.results[id]
        said = {name: weights.get(id, 0.0) for name, weights in shown.items()}
        ways = (
            ("favours", [name for name, weight in said.items() if weight >= SUPPORT]),
            ("speaks against", [n for n, w in said.items() if _RULED_OUT < w <= -SUPPORT]),
            ("rules out", [name for name, weight in said.items() if weight <= _RULED_OUT]),
        )
        words = "; ".join(f"{way} {', '.join(names)}" for way, names in ways if names)
        # Against all of them decides nothing.
        if words and len(ways[1][1]) + len(ways[2][1]) < len(shown):
            negation = "" if result.is_yes else "not so: "
            statement = ALL_OBSERVATIONS[id].statement
            lines.append(f"{result.signal}: {negation}{statement} ({result.observation}): {words}.")
    if not lines:
        lines.append("None of the signals that could decide between the hypotheses was recorded.")
    second = wording.runner_up(diagnosis)
    if second:
        lines.append(f"{second[:1].upper()}{second[1:]}.")
    yield bullets(lines)


def _discriminating_by_tree(diagnosis: Diagnosis) -> Iterator[Content]:
    decided, undecided = [], []
    for place, hypothesis in enumerate(diagnosis.hypotheses, start=1):
        for item in hypothesis.evidence:
            if item.favors is not None:
                way = "favors" if item.favors else "speaks against"
                decided.append(f"{item.signal}: {item.observation}: {way} H{place}.")
            if hypothesis.standing is Standing.OPEN:
                undecided.append(f"{item.signal} was not recorded; it would decide H{place}.")
    if not decided:
        yield Paragraph(
            "None of the signals that could decide between the hypotheses was recorded."
        )
    if decided or undecided:
        yield bullets([*decided, *undecided])


def _questions(diagnosis: Diagnosis) -> Iterator[Content]:
    """Yield everything that was asked; of the observations, those that were made."""
    walk = diagnosis.walk
    if walk is not None:
        rows: list[tuple[RichText, ...]] = []
        for answer in walk.answers:
            result = answer.result
            question = f"{answer.id} {answer.question}"
            rows.append((question, result.outcome, result.observation, str(answer.goes_to)))
        yield ReportTable(("question", "answer", "observed", "next"), tuple(rows))
        return
    answers = list(wording.asked(diagnosis))
    yield ReportTable(
        ("observation", "seen", "value"),
        tuple((what, r.outcome, r.observation) for _, what, r in answers if r.is_answer),
    )
    for outcome in (ObservedOutcome.NOT_RECORDED, ObservedOutcome.TOO_FEW):
        names = sorted({result.signal for *_, result in answers if result.outcome is outcome})
        if names:
            yield Paragraph(f"{outcome.value.capitalize()}: {', '.join(names)}.")


def _root_cause(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    yield Paragraph(prose(diagnosis.root_cause))
    # It stands under the evidence too, but a reader looks here first.
    verified = _verified(diagnosis, run)
    if verified:
        yield bullets(verified)


def _class(diagnosis: Diagnosis) -> str:
    named, incident = diagnosis.incident_class, diagnosis.incident
    if named is not IncidentClass.OPEN:
        return f"{named.capitalize()}, {incident.records} records long."
    return f"Open: the log ends {incident.records} records after the onset, too early to tell."


def _done(diagnosis: Diagnosis, run: RunReport) -> Content:
    acts = list(wording.acts_of(diagnosis.incident, run.block))
    if not acts:
        return Paragraph(
            "Nothing: the run went on by itself, or what was done is not in its journal."
        )
    lines = []
    for event in acts[:_MAX_ACTS]:
        text = wording.event_text(event)
        lines.append(f"Step {event.step}: {event.kind}{': ' if text else ''}{text}")
    if len(acts) > _MAX_ACTS:
        lines.append(f"{len(acts) - _MAX_ACTS} more events are in the journal.")
    return bullets(lines)


def _follow_ups(diagnosis: Diagnosis, run: RunReport) -> Content:
    """Return what people noted about this incident."""
    number = diagnosis.incident.number
    lines = [
        f"Step {event.step}, {wording.event_text(event)}"
        for event in run.block.events
        if event.kind == NOTE and event.facts.get("incident") == number
    ]
    if lines:
        return bullets(lines)
    return Paragraph(
        prose(f'None yet: `trimtab note RUN "what is to be done" --incident {number}`')
    )


def _verification(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    incident = diagnosis.incident
    seed = UNKNOWN if run.facts.seed is None else str(run.facts.seed)
    # As long again as the incident took, and the textbook's 500 steps: a relapse shows by then.
    onset, until = incident.onset.step, 2 * incident.last.step - incident.onset.step + 500
    yield Paragraph(
        f"Run again with the remedy and the same seed ({seed}) past step {until}, then check:"
    )
    commands = [f"trimtab diagnose NEW_RUN    # no incident between {onset} and {until}"]
    checks = verification_checks(diagnosis)
    if checks:
        commands.append(f"trimtab compare NEW_RUN THIS_RUN --verify {VERIFY_FILE}")
    yield CodeBlock(tuple(commands))
    if checks:
        yield bullets([check.wanted for check in checks])


def verification_checks(diagnosis: Diagnosis) -> list[Check]:
    """Return what must hold in a run with the remedy: the same start, and no spike this time."""
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    onset, checks = incident.onset.step, []
    around = StepWindow(onset, max(incident.last.step, incident.peak.step))
    if symptoms.loss_before is not None:
        before = StepWindow(last=onset - 1)
        checks.append(Check(window=before, within=_VERIFIED_NATS))
        level = incident.facts.level
        noise = _VERIFIED_DEVIATIONS * (level.noise if level else 0.0)
        limit = float(digits(symptoms.loss_before + max(_VERIFIED_NATS, noise)))
        checks.append(Check(window=around, max=limit))
    if symptoms.grad_norm_before:
        limit = float(digits(_VERIFIED_NORM * symptoms.grad_norm_before))
        checks.append(Check(signal=GRAD_NORM, window=around, max=limit))
    return checks


def _alternatives(diagnosis: Diagnosis, run: RunReport) -> Iterator[RichText]:
    """Yield the price of waiting, undoing and relaunching; nothing of a run that cannot go back."""
    incident, cost = diagnosis.incident, diagnosis.cost
    events = run.block.events
    saved = [e.step for e in events if e.kind == "checkpoint" and e.step <= incident.onset.step]
    undone = [e for e in wording.acts_of(incident, run.block) if e.kind == UNDO]
    if not saved and not undone:
        return

    def price(steps: int) -> str:
        if run.price_per_hour is None or not cost.seconds or not cost.steps:
            return counted(steps, "step")
        hours = steps * cost.seconds / cost.steps / 3600
        return f"{counted(steps, 'step')}, ${hours * run.price_per_hour:,.2f}"

    yield f"Waiting: {price(cost.steps)} until the incident was over or the run ended"
    if undone:
        lost = sum(int(event.facts.get("updates_lost", 0)) for event in undone)
        yield f"Undoing: {price(lost)}, which were lost ({counted(len(undone), 'undo')})"
    else:
        yield prose('Undoing: 2 to 30 steps, if harm is proven (`mode="recover"`)')
    if saved:
        steps = incident.last.step - max(saved)
        yield f"Relaunching: {price(steps)} back to the checkpoint of step {max(saved)}"


def _cost(diagnosis: Diagnosis, run: RunReport) -> Iterator[RichText]:
    cost, price = diagnosis.cost, run.price_per_hour
    yield f"Steps from the onset to the end: {cost.steps}"
    yield f"Steps lost (not applied, or taken back): {count_lost(diagnosis.incident, run.block)}"
    if cost.discarded is not None:
        where = f" ({cost.discarded.where()})" if cost.discarded.count else ""
        yield f"Steps discarded: {cost.discarded.count}{where}"
    time = UNKNOWN if cost.seconds is None else f"{cost.seconds / 60:.1f} minutes"
    yield f"Time from the onset to the end: {time}"
    yield f"Tokens: {UNKNOWN if cost.tokens is None else f'{cost.tokens:.3g}'}"
    if price is None:
        yield prose("Cost: not known, no price was given (`--price`)")
    elif cost.seconds is None:
        yield "Cost: not known, the time was not recorded"
    else:
        yield f"Cost of this time: ${cost.seconds / 3600 * price:,.2f} at ${price:,.2f} an hour"
