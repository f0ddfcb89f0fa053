"""What a terminal shows: a judged run (`trimtab diagnose`) and a live one (`trimtab observe`).

A judged run: heading, curves with the onsets marked, notes, a table of incidents, the worst of them
explained. A live run: heading, curves, the latest values, its incidents.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.incidents import symptoms_text
from trimtab.core.sink import RunStatus
from trimtab.core.text import digits, printable
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.checks import ObservedOutcome
from trimtab.journal import RunTotals
from trimtab.report import wording
from trimtab.report.run_report import RunReport
from trimtab.report.sparkline import marks, sparkline

MAX_ROWS = 20
"""Incidents listed: more than a screenful is not read. The rest is in --json and --out."""

MAX_EXPLAINED = 3
MAX_WIDTH = 120
"""Wider tables are harder to read along the line. In a narrower one the cause gets the room of the
symptom, which the explanation names."""

KEPT_RECORDS = 2000
"""Records in the curves: in a terminal of 100 columns, one character is 20 records."""

_CURVES = (signals.REWARD, signals.LOSS, signals.GRAD_NORM)

_LIVE_SIGNALS = (
    signals.LOSS,
    signals.GRAD_NORM,
    signals.LR,
    signals.UPDATE_NORM,
    signals.PARAM_NORM,
    signals.TOKENS_PER_SECOND,
)
_MAX_LIVE_INCIDENTS = 10

_COLOURS = {"good": "green", "warn": "yellow", "alarm": "red"}
_OUTCOMES = {ObservedOutcome.YES: "bold", ObservedOutcome.NO: ""}
"""How answers look; what was not answered is dim."""


def report_view(report: RunReport, width: int, *, questions: bool = False) -> RenderableType:
    """Return the report for a terminal; `questions` shows how each answer was found."""
    block = report.block
    listed = report.most_severe(MAX_ROWS)
    onsets = [(block.row_of(one.incident.onset.tick), f"^{one.incident.number}") for one in listed]
    parts: list[RenderableType] = [
        Text(report.verdict, style=f"bold {_COLOURS[report.tone]}"),
        _heading(report, width),
        *_curves(block, onsets, width),
    ]
    acts = (wording.discards_text(block), wording.proposal_text(block))
    parts += [Text(printable(text), style="yellow") for text in acts if text]
    parts += [Text(f"note: {printable(note)}", style="dim") for note in report.notes]
    if not report.incidents:
        return Group(*parts)
    groups = wording.group_alike(report.by_severity())
    if len(report.incidents) > 1:  # of a single one the explanation says it all
        parts += [Text(), _table(groups[:MAX_ROWS], width)]
    if len(groups) > MAX_ROWS:
        rest = sum(map(len, groups[MAX_ROWS:]))
        parts.append(Text(f"{rest} less severe incidents are not listed here.", style="dim"))
    for alike in groups[:MAX_EXPLAINED]:
        parts += [Text(), _explanation(alike, report, questions=questions)]
    if len(groups) > MAX_EXPLAINED:
        line = f"The {MAX_EXPLAINED} most severe are explained; `diagnose --out` explains each."
        parts += [Text(), Text(line, style="dim")]
    return Group(*parts)


def _heading(report: RunReport, width: int) -> Text:
    source = printable(report.source)
    details = wording.origin_text(report)
    gap = "  " if len(source) + 2 + len(details) <= width else "\n"
    return Text(source, style="bold").append(gap + details, style="not bold")


def _curves(block: Block, onsets: Sequence[tuple[int, str]], width: int) -> list[Text]:
    """Return reward, loss and gradient norm as wide as the terminal, with marks under some rows."""
    names = [name for name in _CURVES if block.column(name).recorded]
    indent = max((len(name) for name in names), default=0) + 1
    room = max(width - indent, 10)
    lines = [
        Text(name.ljust(indent), style="cyan").append(
            sparkline(block.column(name), room), style="default"
        )
        for name in names
    ]
    under = marks(onsets, len(block), min(len(block), room))
    if under:
        lines.append(Text(" " * indent + under, style="bold yellow"))
    return lines


def _table(groups: Sequence[tuple[Diagnosis, ...]], width: int) -> Table:
    """Return one line per group of incidents; what does not fit is cut, except the cause."""
    table = Table(box=None, pad_edge=False, header_style="bold", width=min(width, MAX_WIDTH))
    measure = wording.measure_name(groups[0][0])
    for name in ("#", "step", "class", measure, "action"):
        table.add_column(name, justify="right" if name in ("#", "step") else "left", no_wrap=True)
    with_symptom = width >= MAX_WIDTH
    if with_symptom:
        table.add_column("symptom", no_wrap=True, overflow="ellipsis", ratio=2)
    # The cause is what people look for: it is wrapped where the others are cut.
    table.add_column("likely cause", overflow="fold", ratio=3)
    for worst, *others in groups:
        incident = worst.incident
        table.add_row(
            f"{incident.number}{f' and {len(others)} alike' if others else ''}",
            f"{incident.onset.step:,}",
            Text("dismissed", style="dim")
            if worst.dismissed
            else Text(worst.incident_class, style=_COLOURS[wording.tone(worst)]),
            wording.change_text(worst).removeprefix(f"{measure} "),
            wording.action_name(worst),
            *([Text(printable(incident.main_symptom))] if with_symptom else []),
            Text(printable(_cause_cell(worst))),
        )
    return table


def _cause_cell(diagnosis: Diagnosis) -> str:
    """Return the named cause, or what it possibly is; probabilities stand below, for room."""
    if diagnosis.cause is None and diagnosis.other_cause:
        return diagnosis.other_cause
    cause = diagnosis.cause or wording.possible_cause(diagnosis)
    if cause is None:
        return "not known"
    return cause.title if diagnosis.cause else f"possibly {cause.phrase}"


def _explanation(alike: Sequence[Diagnosis], run: RunReport, *, questions: bool) -> Group:
    """Return what happened in the worst of some incidents, from the evidence to the fix."""
    diagnosis = alike[0]
    incident = diagnosis.incident
    title = Text(f"incident {incident.number}", style="bold")
    title.append(f", {wording.steps_text(incident)}, ", style="not bold")
    title.append(incident.incident_class, style=f"not bold {_COLOURS[wording.tone(diagnosis)]}")
    symptoms, change = symptoms_text(incident.symptoms), wording.change_text(diagnosis)
    said = ", ".join(filter(None, (symptoms, change)))
    title.append(f": {printable(said)}", style="not bold")
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    if questions and diagnosis.cause is not None:
        lines.add_row(Text("id", style="bold"), Text(printable(diagnosis.cause.label)))
    for name, text in wording.explanation_lines(alike, run):
        if not (questions and name == "seen"):
            lines.add_row(Text(name, style="bold"), Text(printable(text)))
    parts: list[RenderableType] = [title]
    if questions:
        parts.append(Padding(_questions(diagnosis), (0, 0, 0, 2)))
    return Group(*parts, Padding(lines, (0, 0, 0, 2)))


def _questions(diagnosis: Diagnosis) -> Table:
    """Return the questions of the walk, or the observations: those answered with yes first."""
    answers = list(wording.asked(diagnosis))
    if diagnosis.walk is None:
        made = [item for item in answers if item[2].is_answer]
        answers = sorted(made, key=lambda item: item[2].outcome is not ObservedOutcome.YES)
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


class LiveView:
    """Collects blocks as they are written and draws the current state."""

    def __init__(self, source: str, totals: RunTotals) -> None:
        self._source = source
        self._totals = totals
        self._recent = Block.empty()
        self.ended: str | None = None
        self.died = ""
        """How the run died, if it did."""

    def update(self, block: Block) -> None:
        """Add records that the totals have already."""
        # Cut before joining as well: the first poll of a long run has millions of records.
        joined = Block.concat([self._recent, block[max(len(block) - KEPT_RECORDS, 0) :]])
        self._recent = joined[max(len(joined) - KEPT_RECORDS, 0) :]

    def draw(self, width: int) -> RenderableType:
        """Return the current state for a terminal of this width."""
        if not self._totals.num_records:
            return Text(f"{printable(self._source)}: no records yet")
        parts: list[RenderableType] = [
            self._heading(),
            *_curves(self._recent, list(self._onsets()), width),
            self._numbers(),
        ]
        if self._totals.incidents:
            parts.append(self._incident_table())
        return Group(*parts)

    def _onsets(self) -> Iterator[tuple[int, str]]:
        """Yield the row and the mark of each onset among the recent records."""
        steps = self._recent.step
        for key, facts in sorted(self._totals.incidents.items()):
            rows = np.flatnonzero(steps == facts.get("onset"))
            if len(rows):
                yield int(rows[-1]), f"^{key}"

    def _heading(self) -> Text:
        totals = self._totals
        text = Text(printable(self._source), style="bold")
        text.append(
            f"  step {totals.last_step:,}, {totals.num_records:,} records", style="not bold"
        )
        if totals.num_discarded:
            text.append(f", {totals.num_discarded:,} discarded", style="yellow")
        if self.ended is not None:
            text.append(f", ended: {printable(self.ended)}", style="bold yellow")
        elif self.died:
            text.append(f", died: {printable(self.died)}", style="bold red")
        elif signals.CLOCK in totals.latest:
            silent = max(totals.seconds_silent(time.time()), 0.0)
            is_stalled = totals.status(None, silent) is RunStatus.STALLED
            text.append(f", last record {silent:.0f} s ago", style="red" if is_stalled else "dim")
        return text

    def _numbers(self) -> Text:
        text = Text()
        for name in _LIVE_SIGNALS:
            if name in self._totals.latest:
                value = digits(self._totals.latest[name])
                text.append(f"{name} ", style="dim").append(f"{value}   ")
        return text

    def _incident_table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("#", "onset", "class", "state", "do", "likely cause", "symptoms"):
            table.add_column(name)
        for facts in list(self._totals.incidents.values())[-_MAX_LIVE_INCIDENTS:]:
            symptoms = facts.get("symptoms") or []
            table.add_row(
                *(
                    printable(str(cell))
                    for cell in (
                        facts["number"],
                        facts.get("onset", ""),
                        facts.get("incident_class") or "open",
                        facts.get("transition", "")
                        if not facts.get("dismissed")
                        else f"dismissed by {facts['dismissed']}: {facts.get('text')}",
                        facts.get("action") or "",
                        facts.get("cause") or "not known",
                        symptoms_text(map(str, symptoms))
                        if isinstance(symptoms, list)
                        else symptoms,
                    )
                )
            )
        return table
