"""The terminal view: the run in two lines, its incidents in a table, the walk to each answer."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.signals import GRAD_NORM, LOSS
from trimtab.diagnose.evidence.check import Outcome, number
from trimtab.diagnose.measures.discards import compute_discards
from trimtab.policy.incident_report import IncidentReport
from trimtab.report.plain import plain
from trimtab.report.run_report import RunReport
from trimtab.report.sparkline import marks, sparkline

MOST_ROWS = 20
"""Incidents listed; more than a screenful is not read. The rest is in the written reports."""

MOST_WALKS = 3

_STYLES = {
    IncidentClass.DIVERGENT: "bold red",
    IncidentClass.LINGERING: "red",
    IncidentClass.SILENT: "magenta",
    IncidentClass.RECOVERABLE: "yellow",
}
_VERDICTS = {Outcome.YES: "bold", Outcome.NO: "", Outcome.NOT_RECORDED: "dim italic"}


def view(account: RunReport, width: int) -> RenderableType:
    """The whole account for a terminal of this width."""
    parts: list[RenderableType] = [_heading(account), *_curves(account, width)]
    discards = compute_discards(account.block)
    if discards is not None and discards.count:
        told = f"{discards.count:,} steps discarded, kept from the weights: {discards.where()}"
        parts.append(Text(told, style="yellow"))
    for note in account.notes:
        parts.append(Text(f"note: {plain(note)}", style="dim"))
    if not account.opinions:
        parts.append(Text(f"No incident by the {account.rules} rules.", style="bold green"))
        return Group(*parts)
    shown = account.gravest(MOST_ROWS)
    parts += [Text(), _table(shown)]
    if len(shown) < len(account.opinions):
        rest = len(account.opinions) - len(shown)
        parts.append(Text(f"{rest} milder incidents are not listed here.", style="dim"))
    parts += [_walk(opinion) for opinion in account.gravest(MOST_WALKS)]
    return Group(*parts)


def _heading(account: RunReport) -> Text:
    steps = account.block.step
    text = Text(plain(account.source), style="bold")
    text.append(
        f"  {account.format}, {len(steps):,} records, steps {steps[0]:,} to {steps[-1]:,}, "
        f"{account.rules} rules",
        style="not bold",
    )
    return text


def _curves(account: RunReport, width: int) -> list[Text]:
    block = account.block
    names = [name for name in (LOSS, GRAD_NORM) if block.column(name).recorded]
    indent = max(len(name) for name in names) + 1
    room = max(min(width - indent, 100), 10)
    lines = [
        Text(name.ljust(indent), style="cyan").append(
            sparkline(block.column(name), room), style="default"
        )
        for name in names
    ]
    incidents = [opinion.diagnosis.incident for opinion in account.gravest(MOST_ROWS)]
    onsets = [(block.row_of(incident.onset.tick), f"^{incident.number}") for incident in incidents]
    drawn = min(len(block), room)
    return [*lines, Text(" " * indent + marks(onsets, len(block), drawn), style="bold yellow")]


def _table(opinions: tuple[IncidentReport, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("#", "step", "class", "what", "loss", "likely cause", "do"):
        table.add_column(name, justify="right" if name in "#step" else "left")
    for opinion in opinions:
        diagnosis = opinion.diagnosis
        incident, symptoms = diagnosis.incident, diagnosis.symptoms
        named = diagnosis.incident_class
        table.add_row(
            str(incident.number),
            f"{incident.onset.step:,}",
            Text(named.value if named else "open", style=_STYLES.get(named, "") if named else ""),
            _what(incident),
            f"{number(symptoms.loss_before)} -> {number(symptoms.loss_peak)}",
            diagnosis.cause.title if diagnosis.cause else "not known",
            opinion.action.kind.value,
        )
    return table


def _what(incident: Incident) -> str:
    first, *more = (str(symptom) for symptom in incident.symptoms)
    return f"{first} (+{len(more)})" if more else first


def _walk(opinion: IncidentReport) -> Panel:
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column()
    for answer in opinion.diagnosis.walk.answers:
        verdict = answer.result.outcome
        table.add_row(
            Text(answer.id, style="cyan"),
            answer.question,
            Text(verdict.value, style=_VERDICTS[verdict]),
            Text(plain(answer.result.observation), style="dim"),
        )
    verdict_lines = Table.grid(padding=(0, 2))
    for name, text in (
        ("cause", opinion.diagnosis.root_cause),
        ("do", opinion.action.instruction),
        ("mend", opinion.diagnosis.remedy),
    ):
        verdict_lines.add_row(Text(name, style="bold"), Text(plain(text)))
    incident = opinion.diagnosis.incident
    body = Group(table, Text(), verdict_lines)
    title = f"incident {incident.number}, step {incident.onset.step:,}"
    return Panel(body, title=title, title_align="left", border_style="dim")
