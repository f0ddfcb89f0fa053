"""The terminal view: the run in a few lines, its incidents in a table, the worst of them explained.

heading, curves with the onsets marked, notes, table of incidents, one explanation each
"""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.signals import GRAD_NORM, LOSS
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.check import Outcome, counted, number
from trimtab.explain.measures.discards import compute_discards
from trimtab.report.batch_section import batch_lines
from trimtab.report.escaping import printable
from trimtab.report.reasons import (
    asked,
    cause_text,
    deciding_lines,
    fix_text,
    is_doubtful,
    runner_up,
    short_cause,
)
from trimtab.report.run_report import RunReport
from trimtab.report.sparkline import marks, sparkline

MAX_ROWS = 20
"""Incidents listed: more than a screenful is not read. The rest is in --json and --out."""

MAX_EXPLAINED = 3
MAX_SEEN = 3
"""Observations shown for each incident: those that decided."""

MAX_BATCH_LINES = 2
"""Lines about the batches of an incident; the post-mortem has all."""

MAX_WIDTH = 120
"""Wider tables are harder to read along the line. In a narrower one the cause gets the room of the
symptom, which the explanation names."""

_STYLES = {
    IncidentClass.DIVERGENT: "bold red",
    IncidentClass.LINGERING: "red",
    IncidentClass.SILENT: "magenta",
    IncidentClass.RECOVERABLE: "yellow",
}
_OUTCOMES = {Outcome.YES: "bold", Outcome.NO: ""}
"""How answers look; what was not answered is dim."""


def view(report: RunReport, width: int, *, questions: bool = False) -> RenderableType:
    """The report for a terminal of this width; `questions` shows how each answer was reached."""
    parts: list[RenderableType] = [_heading(report, width), *_curves(report, width)]
    discards = compute_discards(report.block)
    if discards is not None and discards.count:
        steps = counted(discards.count, "step")
        line = f"{steps} discarded, kept out of the weights: {discards.where()}"
        parts.append(Text(line, style="yellow"))
    parts += [Text(f"note: {printable(note)}", style="dim") for note in report.notes]
    if not report.incidents:
        parts.append(Text(f"No incident by the {report.rules} rules.", style="bold green"))
        return Group(*parts)
    listed = report.most_severe(MAX_ROWS)
    parts += [Text(), _table(listed, width)]
    if len(listed) < len(report.incidents):
        rest = len(report.incidents) - len(listed)
        parts.append(Text(f"{rest} less severe incidents are not listed here.", style="dim"))
    explained = report.most_severe(MAX_EXPLAINED)
    for incident in explained:
        parts += [Text(), _explanation(incident, report, questions=questions)]
    if len(explained) < len(report.incidents):
        line = f"The {len(explained)} most severe are explained; `diagnose --out` explains each."
        parts += [Text(), Text(line, style="dim")]
    return Group(*parts)


def _heading(report: RunReport, width: int) -> Text:
    steps = report.block.step
    source = printable(report.source)
    details = (
        f"{report.format}, {len(steps):,} records, steps {steps[0]:,} to {steps[-1]:,}, "
        f"{report.rules} rules"
    )
    gap = "  " if len(source) + 2 + len(details) <= width else "\n"
    return Text(source, style="bold").append(gap + details, style="not bold")


def _curves(report: RunReport, width: int) -> list[Text]:
    block = report.block
    names = [name for name in (LOSS, GRAD_NORM) if block.column(name).recorded]
    indent = max(len(name) for name in names) + 1
    room = max(width - indent, 10)
    lines = [
        Text(name.ljust(indent), style="cyan").append(
            sparkline(block.column(name), room), style="default"
        )
        for name in names
    ]
    listed = (report.incident for report in report.most_severe(MAX_ROWS))
    onsets = [(block.row_of(incident.onset.tick), f"^{incident.number}") for incident in listed]
    if onsets:
        under = marks(onsets, len(block), min(len(block), room))
        lines.append(Text(" " * indent + under, style="bold yellow"))
    return lines


def _table(diagnoses: tuple[Diagnosis, ...], width: int) -> Table:
    """One line per incident; what does not fit is cut, except the cause."""
    table = Table(box=None, pad_edge=False, header_style="bold", width=min(width, MAX_WIDTH))
    for name in ("#", "step", "class", "loss", "action"):
        table.add_column(name, justify="right" if name in ("#", "step") else "left", no_wrap=True)
    with_symptom = width >= MAX_WIDTH
    if with_symptom:
        table.add_column("symptom", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("likely cause", overflow="fold", ratio=3)
    for diagnosis in diagnoses:
        incident = diagnosis.incident
        symptoms, named = diagnosis.symptoms, diagnosis.incident_class
        table.add_row(
            str(incident.number),
            f"{incident.onset.step:,}",
            Text(diagnosis.outcome, style=_STYLES.get(named, "") if named else ""),
            f"{number(symptoms.loss_before)} -> {number(symptoms.loss_peak)}",
            diagnosis.action.kind.value,
            *([Text(printable(str(incident.symptoms[0])))] if with_symptom else []),
            Text(printable(_cause_cell(diagnosis))),
        )
    return table


def _cause_cell(diagnosis: Diagnosis) -> str:
    """The cause; its probability only where it is doubtful, for the room."""
    if diagnosis.cause is None or is_doubtful(diagnosis):
        return short_cause(diagnosis)
    return f"{diagnosis.cause.id} {diagnosis.cause.title}"


def _explanation(diagnosis: Diagnosis, run: RunReport, *, questions: bool) -> Group:
    """What happened in one incident, from the evidence to the fix."""
    incident = diagnosis.incident
    named = diagnosis.incident_class
    title = Text(f"incident {incident.number}", style="bold")
    title.append(f", {_steps(incident)}, ", style="not bold")
    title.append(diagnosis.outcome, style=_STYLES.get(named, "not bold") if named else "not bold")
    title.append(f": {', '.join(printable(str(s)) for s in incident.symptoms)}", style="not bold")
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for finding in incident.findings:
        package = run.package_of(finding)
        if package:
            lines.add_row(Text("found", style="bold"), Text(_foreign(finding, package)))
    for name, text in (
        *(() if questions else (("seen", text) for text in deciding_lines(diagnosis, MAX_SEEN))),
        *(("batch", line) for line in batch_lines(diagnosis)[:MAX_BATCH_LINES]),
        ("cause", cause_text(diagnosis)),
        ("or", "" if _has_look_alikes(diagnosis) else runner_up(diagnosis)),
        ("do", diagnosis.action.instruction),
        ("fix", fix_text(diagnosis)),
    ):
        if text:
            lines.add_row(Text(name, style="bold"), Text(printable(text)))
    parts: list[RenderableType] = [title]
    if questions:
        parts.append(Padding(_questions(diagnosis), (0, 0, 0, 2)))
    return Group(*parts, Padding(lines, (0, 0, 0, 2)))


def _has_look_alikes(diagnosis: Diagnosis) -> bool:
    """Whether the sentence about the cause already names what it cannot be told apart from."""
    return diagnosis.ranking is not None and len(diagnosis.ranking.alike) > 1


def _steps(incident: Incident) -> str:
    first, end = incident.onset.step, incident.end
    if end is None or end.step <= first:
        return f"step {first:,}"
    return f"steps {first:,} to {end.step:,}"


def _foreign(finding: Finding, package: str) -> str:
    """A finding of a plug-in's detector."""
    expected = "" if finding.expected is None else f", expected {number(finding.expected)}"
    return printable(
        f"{finding.symptom}: {finding.signal} {number(finding.value)} at step {finding.step:,}"
        f"{expected}, by {finding.detector} ({package})"
    )


def _questions(diagnosis: Diagnosis) -> Table:
    """The questions of the walk, or the observations that were made: those seen first."""
    answers = list(asked(diagnosis))
    if diagnosis.walk is None:
        made = [item for item in answers if item[2].outcome.is_answer]
        answers = sorted(made, key=lambda item: item[2].outcome is not Outcome.YES)
    table = Table(box=None, pad_edge=False, show_header=False)
    if diagnosis.walk is not None:
        table.add_column(no_wrap=True)
    for _ in range(3):
        table.add_column()
    for id, question, result in answers:
        table.add_row(
            *([] if diagnosis.walk is None else [Text(id, style="cyan")]),
            question,
            Text(result.outcome.value, style=_OUTCOMES.get(result.outcome, "dim italic")),
            Text(printable(result.observation), style="dim"),
        )
    return table
