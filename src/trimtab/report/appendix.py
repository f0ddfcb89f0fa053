"""The appendix of a post-mortem: all that was measured, found and asked, in tables."""

import math
from collections.abc import Iterator

import numpy as np

from trimtab.core.causes import Cause
from trimtab.core.findings import Finding
from trimtab.core.signals import GRAD_NORM, LOSS, LR, REWARD, TOKEN_RARITY, UNIQUE_TOKEN_SHARE
from trimtab.core.text import counted, digits
from trimtab.explain.causes.plausible import concerns
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures import LayerMap
from trimtab.report import wording
from trimtab.report.batch_section import batch_contents, batch_items, may_explain
from trimtab.report.document import Content, Paragraph, ReportTable, RichText, bullets
from trimtab.report.run_report import RunReport

_SHOWN = (LOSS, GRAD_NORM, LR, REWARD, TOKEN_RARITY, UNIQUE_TOKEN_SHARE)
_OFFSETS = (-3, -2, -1, 0, 1, 2, 3, 5, 10, 20, 50)
"""Records around the onset that the table shows: every one close to it, fewer further away."""

_MAP_LAYERS, _MAP_STEPS = 12, 8
"""Layers and records that a post-mortem shows."""


def evidence(diagnosis: Diagnosis, run: RunReport) -> Iterator[Content]:
    """Yield everything that was measured and found, without an explanation."""
    yield bullets(
        [
            f"Run: {run.facts.link or run.source}",
            *_positions(diagnosis, run),
            *batch_items(diagnosis, run.facts.ranks),
            *(f"Note: {note}" for note in run.notes),
        ]
    )
    if diagnosis.batch is not None and may_explain(diagnosis.batch, diagnosis):
        yield from batch_contents(diagnosis.batch)
    yield from _token_losses(diagnosis)
    shown, total = len(diagnosis.incident.findings), diagnosis.incident.num_findings
    yield Paragraph(f"Findings, the first of each kind, {shown} of {total:,}:")
    yield _findings(diagnosis, run)
    yield from _movers(diagnosis)
    yield Paragraph("Records around the onset:")
    yield _records(diagnosis, run)


def questions(diagnosis: Diagnosis) -> Iterator[Content]:
    """Yield the questions that were answered, with what was observed."""
    walk = diagnosis.walk
    if walk is not None:
        rows: list[tuple[RichText, ...]] = []
        for answer in walk.answers:
            result = answer.result
            question = f"{answer.id} {answer.question}"
            rows.append((question, result.outcome, result.observation, str(answer.goes_to)))
        yield ReportTable(("question", "answer", "observed", "next"), tuple(rows))
        return
    answers = [item for item in wording.asked(diagnosis) if item[-1].is_answer]
    named = [one.cause for one in diagnosis.hypotheses if isinstance(one.cause, Cause)]
    seen = tuple(
        (what, result.observation)
        for id, what, result in answers
        if result.is_yes and any(concerns(id, cause) for cause in named)
    )
    if seen:
        yield ReportTable(("seen", "value"), seen)
    unseen = counted(sum(result.is_no for _, _, result in answers), "other question")
    yield Paragraph(f"{unseen} had the answer no; the others need signals that were not recorded.")


def _positions(diagnosis: Diagnosis, run: RunReport) -> Iterator[str]:
    incident = diagnosis.incident
    rows = slice(run.block.row_of(incident.onset.tick), run.block.row_of(incident.last.tick) + 1)
    known = run.block.data_position[rows]
    known = known[known >= 0]  # negative: not recorded
    if len(known):
        yield f"Batches at positions {np.min(known):,} to {np.max(known):,} of the data"


def _findings(diagnosis: Diagnosis, run: RunReport) -> ReportTable:
    rows = []
    for finding in diagnosis.incident.findings:
        package = run.package_of(finding)
        values = (finding.value, finding.expected, _limit(finding))
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


def _limit(finding: Finding) -> float | None:
    """Return the limit that the value is beyond; None where only several records together are."""
    value, usual, limit = finding.value, finding.expected, finding.limit
    if value is None or usual is None or limit is None:
        return limit
    return limit if not (value - limit) * (limit - usual) < 0 else None


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
    alone = all(move.step > first.step for move in others)
    times = f"was {digits(first.ratio)} times its usual value"
    if not math.isfinite(first.ratio):
        times = "was not finite"
    text = (
        f"Layer {first.layer} moved {'first' if alone else 'furthest'}: {first.signal} {times} at "
        f"step {first.step}."
    )
    if others:
        rest = (f"{move.layer} (step {move.step}, {move.signal})" for move in others[:4])
        text += f" Then: {', '.join(rest)}."
    yield Paragraph(text)
    near = chart.layers.index(first.layer)
    start = max(min(near - _MAP_LAYERS // 2, len(chart.layers) - _MAP_LAYERS), 0)
    rows = tuple(
        (_site(chart, at), *(digits(float(ratio)) for ratio in chart.ratios[at, -_MAP_STEPS:]))
        for at in range(start, min(start + _MAP_LAYERS, len(chart.layers)))
    )
    yield Paragraph(f"{chart.family.rstrip('/.')} by layer and step, in units of the usual value:")
    head = ("layer", *(str(step) for step in chart.steps[-_MAP_STEPS:]))
    yield ReportTable(head, rows, frozenset(range(len(head))))


def _site(chart: LayerMap, at: int) -> str:
    """Return the layer of a row of a map, with what else tells it from others of that layer."""
    layer, name = chart.layers[at], chart.names[at].removeprefix(chart.family)
    return layer if chart.layers.count(layer) == 1 else name


def _records(diagnosis: Diagnosis, run: RunReport) -> ReportTable:
    """Return the records around the onset, and the peak, with the signal that told it first."""
    incident = diagnosis.incident
    onset, peak = (run.block.row_of(one.tick) for one in (incident.onset, incident.peak))
    start = max(onset + _OFFSETS[0], 0)
    near = run.block[start : max(onset + _OFFSETS[-1], peak) + 1]
    names = dict.fromkeys((*_SHOWN, incident.findings[0].signal))
    columns = {name: near.column(name) for name in names if near.column(name).recorded}
    marks = {peak - start: " (peak)", onset - start: " (onset)"}
    rows = []
    for row in sorted({peak - start, *(onset + offset - start for offset in _OFFSETS)}):
        if 0 <= row < len(near):
            mark = marks.get(row, "")
            shown = columns.values()
            cells = (digits(float(c.values[row])) if c.present[row] else "" for c in shown)
            rows.append((f"{near.step[row]}{mark}", *cells))
    return ReportTable(("step", *columns), tuple(rows), frozenset(range(len(columns) + 1)))
