"""The post-mortem of one incident, as a document in the playbook's order.

A summary in five lines, then what was measured before anything is explained: symptoms, hypotheses,
the evidence that discriminates between them, root cause, remediation, verification, lesson. Type,
outcome, cost and follow-ups come next, and an appendix has all that was measured and asked.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from trimtab.core.actions import ActionKind
from trimtab.core.causes import Cause, Evidence, Standing
from trimtab.core.events import NOTE, UNDO
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.signals import CLOCK
from trimtab.core.text import counted, digits
from trimtab.explain.causes.ranking import SUPPORT
from trimtab.explain.context import proof_of_hardware
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.time_use import count_lost
from trimtab.explain.verdict.instruction import level_text
from trimtab.explain.verdict.table import ABOVE, MIN_SINCE
from trimtab.explain.verification import verification_checks
from trimtab.report import wording
from trimtab.report.appendix import evidence, questions
from trimtab.report.batch_section import unusual_tokens_text
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
from trimtab.report.figures import draw_incident, panel_names
from trimtab.report.run_report import RunReport

INCIDENT_FIGURE = "incident.svg"
"""The files of the figures, beside the post-mortem."""

VERIFY_FILE = "verify.toml"
"""The checks of its section "Verification", for `trimtab compare --verify`."""

_REST = 0.05
"""What is left for the causes that are not listed, from which on it is said."""
_MAX_ACTS = 20

_STAYS = (IncidentClass.LINGERING, IncidentClass.DIVERGENT, IncidentClass.DEAD)
"""Classes of a loss that has not come back."""


def build_postmortem(diagnosis: Diagnosis, run: RunReport) -> ReportDocument:
    """Return the post-mortem of one incident of a run."""
    sections: dict[str, Iterable[Content]] = {
        "In short": [ReportTable(("", ""), tuple(in_short(diagnosis, run)))],
        "1 Symptoms": _symptoms(diagnosis, run),
        "2 Hypotheses": _hypotheses(diagnosis),
        "3 Discriminating evidence": _discriminating(diagnosis, run),
        "4 Root cause": _root_cause(diagnosis, run),
        "5 Remediation": _remediation(diagnosis),
        "6 Verification": _verification(diagnosis, run),
        "7 Lesson": [Paragraph(prose(diagnosis.lesson))],
        "Type": [Paragraph(_type(diagnosis))],
        "Outcome": [Paragraph(_outcome(diagnosis))],
        "What was done": [_done(diagnosis, run)],
        "Cost": [bullets(_cost(diagnosis, run))],
        "Follow-ups": [_follow_ups(diagnosis, run)],
        "Evidence": evidence(diagnosis, run),
        "The questions asked": questions(diagnosis),
    }
    figure = Figure(
        "Signals around the incident",
        INCIDENT_FIGURE,
        lambda is_file: draw_incident(diagnosis, run.block, is_file=is_file),
    )
    return ReportDocument(
        title=_title(diagnosis, run),
        lead=f"{run.source}, judged by the {run.rules} rules.",
        sections=tuple(ReportSection(name, tuple(body)) for name, body in sections.items()),
        figures=(figure,),
    )


def write_postmortem(diagnosis: Diagnosis, run: RunReport) -> str:
    return to_markdown(build_postmortem(diagnosis, run), with_figures=False)


# Summary


def _title(diagnosis: Diagnosis, run: RunReport) -> str:
    """Return the incident with its time and run: it is read long after, among others."""
    incident = diagnosis.incident
    where = f"{_time(diagnosis, run) or 'time not recorded'}, run {Path(run.source).name}"
    what = f"{event_of(diagnosis)} at step {incident.onset.step:,}, {diagnosis.incident_class}"
    return f"Incident {incident.number}: {what} ({where})"


def event_of(diagnosis: Diagnosis) -> str:
    """Return what happened, by its numbers: "loss 4.36 -> 5.97"."""
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    before, peak, reward = symptoms.loss_before, symptoms.loss_peak, incident.facts.reward
    if reward is not None and reward.is_gone:
        return f"reward {digits(reward.before)} -> {digits(reward.now)}"
    if incident.facts.is_loud and before is not None and peak is not None and not peak <= before:
        return f"loss {wording.losses_text(diagnosis)}"
    first = incident.findings[0]
    if first.value is None or first.expected is None:
        return incident.main_symptom
    return f"{first.symptom}, {first.signal} {digits(first.expected)} -> {digits(first.value)}"


def in_short(diagnosis: Diagnosis, run: RunReport) -> Iterator[tuple[str, str]]:
    """Yield an incident in five lines: what, when, why, what was done, what to do."""
    yield "what", f"{event_of(diagnosis)}; {_outcome(diagnosis, is_short=True)}"
    time = _time(diagnosis, run)
    yield "when", f"{wording.steps_text(diagnosis.incident)}{', ' if time else ''}{time}"
    if run.bad_end:
        yield "ended", run.bad_end
    yield "why", wording.cause_text(diagnosis)
    yield "done", _done_in_short(diagnosis, run)
    yield "to do", diagnosis.action.instruction
    following = _next_incident(diagnosis, run)
    if following is not None:
        yield "then", f"incident {following.number} begins at step {following.onset.step:,}"
    if diagnosis.dismissal:
        yield "note", diagnosis.dismissal


def _next_incident(diagnosis: Diagnosis, run: RunReport) -> Incident | None:
    later = (one.incident for one in run.incidents)
    return next((one for one in later if one.onset.tick > diagnosis.incident.last.tick), None)


def _time(diagnosis: Diagnosis, run: RunReport) -> str:
    """Return when the incident began; empty if the run has no clock."""
    clock = run.block.column(CLOCK)
    row = run.block.row_of(diagnosis.incident.onset.tick)
    if row >= len(clock.values) or not clock.finite[row]:
        return ""
    time = datetime.fromtimestamp(float(clock.values[row]), UTC)
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _done_in_short(diagnosis: Diagnosis, run: RunReport) -> str:
    parts = []
    discarded, undone = diagnosis.cost.discarded, diagnosis.incident.facts.undone_updates
    if discarded is not None and discarded.count:
        parts.append(f"{counted(discarded.count, 'step')} discarded ({discarded.where()})")
    if undone:
        parts.append(f"{counted(undone, 'update')} undone")
    return ", ".join(parts) or _nothing_done(diagnosis, run)


def _nothing_done(diagnosis: Diagnosis, run: RunReport) -> str:
    if wording.open_offer(run.block) in tuple(wording.acts_of(diagnosis.incident, run.block)):
        return "an older state was proposed, and nobody took it"
    if run.format != "journal":
        return f"not recorded: a log in the format {run.format} holds no interventions"
    return f"nothing: trimtab did not intervene ({wording.steps_text(diagnosis.incident)})"


# The seven sections


def _symptoms(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    """Yield the numbers of the incident, and which of them were not recorded."""
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    position, tokens = symptoms.data_position, symptoms.tokens
    known: dict[str, str | None] = {
        "onset, step": f"{incident.onset.step:,}",
        **_reward_rows(diagnosis),
        "loss before (average of up to 50 records)": _number(symptoms.loss_before),
        **_peak_rows(diagnosis, run),
        "gradient norm before": _number(symptoms.grad_norm_before),
        "gradient norm, largest, before clipping": _number(symptoms.grad_norm_peak),
        "learning rate at the onset": _number(symptoms.lr),
        "dtype": symptoms.dtype,
        "tokens in the batch": None if tokens is None else f"{tokens:,.0f}",
        "batch position": None if position is None else f"{position:,}",
        "rarity of the batch's tokens (mean -log p)": _number(symptoms.token_rarity),
        "fraction of distinct tokens in the batch": _number(symptoms.unique_token_share),
        "unusual tokens in the batch": unusual_tokens_text(diagnosis.batch),
        "newest sound checkpoint before the onset": diagnosis.checkpoint or "none is known",
        "findings in total": f"{incident.num_findings:,}",
    }
    rows = tuple((name, value) for name, value in known.items() if value is not None)
    yield ReportTable(("what", "value"), rows)
    missing = [name for name, value in known.items() if value is None]
    if missing:
        yield Paragraph(f"Not recorded: {', '.join(missing)}.")


def _peak_rows(diagnosis: Diagnosis, run: RunReport) -> dict[str, str | None]:
    """Return the peak of the loss and what came after it, where the loss rose."""
    before, peak = diagnosis.symptoms.loss_before, diagnosis.symptoms.loss_peak
    if before is not None and peak is not None and peak <= before:
        return {}
    return {
        "peak loss": f"{digits(peak)} at step {diagnosis.incident.peak.step:,}",
        **{f"loss {n} records after the peak": _loss_after(diagnosis, run, n) for n in (50, 500)},
    }


def _reward_rows(diagnosis: Diagnosis) -> dict[str, str | None]:
    """Return the reward before and now, of a policy alone."""
    reward = diagnosis.incident.facts.reward
    if reward is None:
        return {}
    return {"reward before": digits(reward.before), "reward now": digits(reward.now)}


def _number(value: float | None) -> str | None:
    return None if value is None else digits(value)


def _loss_after(diagnosis: Diagnosis, run: RunReport, records: int) -> str | None:
    """Return the loss some records after the peak, or where the log ends."""
    symptoms = diagnosis.symptoms
    value = symptoms.loss_after_50 if records == 50 else symptoms.loss_after_500
    left = len(run.block) - 1 - run.block.row_of(diagnosis.incident.peak.tick)
    if value is None and left < records:
        return f"the log ends {counted(left, 'record')} after the peak"
    if value is None and symptoms.loss_peak is not None:
        return "another incident had begun"
    before = symptoms.loss_before
    is_above = value is not None and before is not None and not value <= before
    if is_above and diagnosis.incident_class in _STAYS:
        return f"{digits(value)}, did not recover"
    return _number(value)


def _hypotheses(diagnosis: Diagnosis) -> Iterator[Content]:
    items = []
    for hypothesis in diagnosis.hypotheses:
        cause = hypothesis.cause.label if hypothesis.cause else ""
        standing, inner = str(hypothesis.standing), tuple(map(_cited, hypothesis.evidence))
        statement = ": ".join(filter(None, (cause, hypothesis.statement)))
        if hypothesis.probability is not None:
            # A sentence about a cause is a finding only where the cause is named.
            is_named = hypothesis.cause is not None and hypothesis.cause == diagnosis.cause
            share = wording.percent(hypothesis.probability)
            standing = share if is_named else f"possible, {share}"
        elif diagnosis.ranking is not None and hypothesis.standing is Standing.RULED_OUT:
            statement, inner = cause or hypothesis.statement, ()  # the next section says by what
        items.append(ListItem((Strong(standing), f": {statement}."), inner))
    yield BulletList(tuple(items), is_numbered=True)
    if diagnosis.ranking is not None:
        shares = (wording.rounded(one.probability or 0.0) for one in diagnosis.hypotheses)
        rest = 1 - sum(shares)
        if rest >= _REST:
            yield Paragraph(f"The rest, {wording.percent(rest)}: other causes, or none of these.")


def _cited(item: Evidence) -> str:
    way = {True: "for: ", False: "against: ", None: ""}[item.favors]
    return f"{way}{item.signal}: {item.observation}"


def _discriminating(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    """Yield what decided between the hypotheses, and what would."""
    if diagnosis.ranking is None:
        yield from _discriminating_by_tree(diagnosis)
        return
    panels = {name: n for n, name in enumerate(panel_names(diagnosis, run.block), start=1)}
    said: dict[tuple[str, str], list[tuple[str, str, float]]] = {}
    for number, hypothesis in enumerate(diagnosis.hypotheses, start=1):
        for item in hypothesis.evidence:
            if item.weight is None or abs(item.weight) >= SUPPORT:
                way = "favours" if item.favors else "speaks against"
                if hypothesis.standing is Standing.RULED_OUT and hypothesis.probability is None:
                    way = "rules out"
                if item.favors is not None:
                    one = (way, f"H{number}", abs(item.weight or 0.0))
                    said.setdefault((item.signal, item.observation), []).append(one)
    lines = []
    for (signal, observation), found in said.items():
        panel = f" (panel {panels[signal]})" if signal in panels else ""
        ways = dict.fromkeys(way for way, _, _ in found)
        words = "; ".join(
            f"{way} {_by_weight([(h, x) for w, h, x in found if w == way])}" for way in ways
        )
        lines.append(f"{signal}{panel}: {observation}: {words}.")
    if not lines:
        lines.append("None of the signals that could decide between the hypotheses was recorded.")
    second = wording.runner_up(diagnosis)
    if second:
        lines.append(f"{second[:1].upper()}{second[1:]}.")
    yield bullets(lines)


def _by_weight(found: list[tuple[str, float]]) -> str:
    """Return what an observation speaks for, and for what it does so clearly less."""
    strongest = max(weight for _, weight in found)
    most = [name for name, weight in found if strongest - weight < SUPPORT]
    less = [name for name, weight in found if strongest - weight >= SUPPORT]
    return ", ".join(most) + (f", and less {', '.join(less)}" if less else "")


def _discriminating_by_tree(diagnosis: Diagnosis) -> Iterator[Content]:
    decided, undecided = [], []
    for place, hypothesis in enumerate(diagnosis.hypotheses, start=1):
        for item in hypothesis.evidence:
            if item.favors is not None:
                way = "favours" if item.favors else "speaks against"
                decided.append(f"{item.signal}: {item.observation}: {way} H{place}.")
            if hypothesis.standing is Standing.OPEN:
                undecided.append(f"{item.signal} was not recorded; it would decide H{place}.")
    if not decided:
        yield Paragraph(
            "None of the signals that could decide between the hypotheses was recorded."
        )
    if decided or undecided:
        yield bullets([*decided, *undecided])


def _root_cause(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    cause = wording.cause_text(diagnosis)
    yield Paragraph(prose(f"{cause[:1].upper()}{cause[1:]}"))
    proof = proof_of_hardware(diagnosis.incident, run.block)
    if proof is not None:
        yield bullets([f"Verified in memory: {proof}"])


def _remediation(diagnosis: Diagnosis) -> Iterator[Content]:
    action = diagnosis.action
    yield Paragraph((Strong("Now"), ": ", *prose(f"{action.instruction} {action.reason}")))
    is_of_device = diagnosis.cause is Cause.BIT_FLIP
    is_later = action.kind is ActionKind.WAIT and diagnosis.cause is not None and not is_of_device
    name = "Fix, for the next run" if is_later else "Fix"
    if fix := wording.fix_text(diagnosis):
        yield Paragraph((Strong(name), ": ", *prose(fix)))


def _verification(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    incident = diagnosis.incident
    seed = "" if run.facts.seed is None else f" and the same seed ({run.facts.seed})"
    # As long again as the incident took, and the textbook's 500 steps: a relapse shows by then.
    onset, until = incident.onset.step, 2 * incident.last.step - incident.onset.step + 500
    until = min(until, int(run.block.step.max())) if len(run.block) else until
    following = _next_incident(diagnosis, run)
    until = until if following is None else min(until, following.onset.step - 1)
    again = f"Run again with the fix{seed} to step {until:,}, then check:"
    if diagnosis.cause is Cause.BIT_FLIP:  # it comes by chance
        again = f"Only a test of the memory tells. After it, run to step {until:,}, then check:"
    yield Paragraph(again)
    commands = [f"trimtab diagnose NEW_RUN    # no incident from step {onset} to {until}"]
    checks = verification_checks(diagnosis, run.block)
    if checks:
        commands.append(f"trimtab compare NEW_RUN THIS_RUN --verify {VERIFY_FILE}")
    yield CodeBlock(tuple(commands))
    if checks:
        yield bullets([check.wanted for check in checks])


# What became of it


TYPES = {
    IncidentClass.KEPT_OUT: "No type: no bad step reached the weights.",
    IncidentClass.RESTORED: "No type: what was harmed has been restored.",
    IncidentClass.RECOVERED: "Type 1: it came back.",
    IncidentClass.SILENT: "No type: the loss did not follow.",
    IncidentClass.RECOVERING: "Type 1, if it goes on as it does.",
    IncidentClass.PLATEAU: "No type: the run does not learn.",
    IncidentClass.OPEN: "The type is not known yet.",
    IncidentClass.LINGERING: "Type 2: the loss settled above its level.",
    IncidentClass.COLLAPSED: "Type 3: it has not come back.",
    IncidentClass.DIVERGENT: "Type 3: it has not come back.",
    IncidentClass.DEAD: "Type 3: it has not come back.",
}
"""The playbook's three types of a loss spike, by class."""

_LEFT_BEHIND = "No type: the run has gone on from before it."


def _type(diagnosis: Diagnosis) -> str:
    named, incident = diagnosis.incident_class, diagnosis.incident
    kind = _LEFT_BEHIND if incident.facts.was_left_behind else TYPES[named]
    if incident.facts.factor is not None:
        kind = "No type: the loss is another number."
    if named is IncidentClass.SILENT and not _has_losses_since(incident):
        kind = TYPES[IncidentClass.OPEN]
    return f"{named.capitalize()}, {counted(incident.records, 'record')} long. {kind}"


def _has_losses_since(incident: Incident) -> bool:
    return incident.facts.records >= MIN_SINCE


def _outcome(diagnosis: Diagnosis, *, is_short: bool = False) -> str:
    """Return what became of the run: "back on its trajectory at step 14,800"."""
    incident, facts = diagnosis.incident, diagnosis.incident.facts
    standing = level_text(facts)
    match incident.incident_class:
        case IncidentClass.KEPT_OUT:
            became = "kept out of the weights"
        case IncidentClass.RESTORED:
            became = f"restored, {counted(facts.undone_updates, 'update')} lost"
        case IncidentClass.RECOVERED if facts.level is not None and facts.level.z > ABOVE:
            became = "the held-out loss is where it was" if facts.evaluation else "nearly back"
        case IncidentClass.RECOVERED if incident.end is not None:
            records = counted(incident.records, "record")
            became = f"back on its trajectory at step {incident.end.step:,}, after {records}"
        case IncidentClass.RECOVERED:
            became = "back on its trajectory"
        case IncidentClass.SILENT if _has_losses_since(incident):
            became = "the loss did not follow"
        case IncidentClass.SILENT:
            became = "too early to say whether the loss follows"
        case IncidentClass.PLATEAU:
            became = "the run does not learn"
        case IncidentClass.COLLAPSED if facts.reward is not None and not facts.reward.is_gone:
            became = "the reward rose while the held-out reward fell"
        case IncidentClass.COLLAPSED if is_short and facts.reward is not None:
            became = "the reward is gone"
        case IncidentClass.OPEN:
            became = "too early to say when the log ends"
        case _:
            became, standing = standing, ""
    if is_short:
        return became
    at = f"at step {incident.last.step:,} " if incident.end is not None else ""
    text = f"{became}; {at}{standing}" if standing and facts.level is not None else became
    return f"{text[:1].upper()}{text[1:]}."


def _done(diagnosis: Diagnosis, run: RunReport) -> Content:
    acts = sorted(wording.acts_of(diagnosis.incident, run.block), key=lambda act: act.step)
    if not acts:
        nothing = _nothing_done(diagnosis, run)
        return Paragraph(f"{nothing[:1].upper()}{nothing[1:]}.")
    lines = []
    for event in acts[:_MAX_ACTS]:
        text = wording.event_text(event)
        lines.append(f"Step {event.step:,}: {event.kind}{': ' if text else ''}{text}")
    if len(acts) > _MAX_ACTS:
        lines.append(f"{len(acts) - _MAX_ACTS} more events are in the journal.")
    return bullets(lines)


def _cost(diagnosis: Diagnosis, run: RunReport) -> Iterator[RichText]:
    """Yield the cost with its formula, and the prices of going back."""
    cost, incident = diagnosis.cost, diagnosis.incident
    a_step = cost.seconds / cost.steps if cost.seconds and cost.steps else None

    def price(steps: int) -> str:
        text = counted(steps, "step")
        if a_step is None:
            return text
        seconds = steps * a_step
        took = f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:,.1f} minutes"
        text += f" x {digits(a_step)} s = {took}"
        if run.price_per_hour is None:
            return text
        hours = steps * a_step / 3600
        return f"{text}, x ${run.price_per_hour:,.2f} an hour = ${hours * run.price_per_hour:,.2f}"

    yield f"From the onset to the end: {price(cost.steps)}"
    if lost := count_lost(incident, run.block):
        yield f"Lost, because discarded, undone or in vain: {price(lost)}"
    if cost.tokens is not None:
        yield f"Tokens from the onset to the end: {cost.tokens:.3g}"
    undone = [e for e in wording.acts_of(incident, run.block) if e.kind == UNDO]
    if undone:
        updates = sum(int(event.facts.get("updates_lost", 0)) for event in undone)
        yield f"Undone, of these: {price(updates)} ({counted(len(undone), 'undo')})"
    names = run.facts.checkpoints
    saved = [step for step, name in names.items() if name == diagnosis.checkpoint]
    if saved and diagnosis.action.kind is not ActionKind.WAIT:
        back = price(incident.last.step - max(saved))
        yield f"Going back to {diagnosis.checkpoint}: {back}"
    if a_step is None:
        yield "The time of a step was not recorded"
    elif run.price_per_hour is None:
        yield prose("No price was given (`--price`)")


def _follow_ups(diagnosis: Diagnosis, run: RunReport) -> Content:
    """Return what people noted about this incident."""
    number = diagnosis.incident.number
    lines = [
        f"Step {event.step:,}, {wording.event_text(event)}"
        for event in run.block.events
        if event.kind == NOTE and event.facts.get("incident") == number
    ]
    if lines:
        return bullets(lines)
    return Paragraph(
        prose(f'None yet: `trimtab note RUN "what is to be done" --incident {number}`')
    )
