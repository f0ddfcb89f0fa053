"""A gallery of published incidents: the list INCIDENTS.md and its picture.

Texts are ours (gallery.toml), numbers are the published ones, and what trimtab says is computed.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.causes.stories import read_stories, story_report
from benchmarks.small_charts import HEIGHT, across, draw_grid, line
from trimtab.core.signals import LOSS
from trimtab.report.run_report import RunReport
from trimtab.report.wording import short_cause

_TEXTS = Path(__file__).parent / "gallery.toml"
_FOLDER = Path(__file__).parents[1]
_PAGE, _PICTURE = _FOLDER / "INCIDENTS.md", _FOLDER / "incidents.svg"
_MARKED = re.compile(r"(?s)(<!-- scripts/bench causes gallery -->\n).*?(<!-- end -->)")


def write_gallery(folder: Path) -> None:
    """Write the list and its picture from the stories in a folder; named causes come first."""
    texts = tomllib.loads(_TEXTS.read_text(encoding="utf-8"))
    stories = {story["id"]: story for story in read_stories(folder, sparse=False)}
    reports = {id: story_report(folder, stories[id]) for id in texts}
    order = sorted(texts, key=lambda id: not _is_named(reports[id]))
    entries = [_entry(texts[id], str(stories[id]["source"]), reports[id]) for id in order]
    page = _PAGE.read_text(encoding="utf-8")
    body = "\n".join(f"{number}. {entry}" for number, entry in enumerate(entries, start=1))
    page = _MARKED.sub(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", page)
    _PAGE.write_text(page, encoding="utf-8")
    titles = [f"{n}. {texts[id]['title']}" for n, id in enumerate(order, start=1)]
    charts = [_chart(reports[id]) for id in order]
    _PICTURE.write_text(draw_grid(titles, charts), encoding="utf-8")


def _is_named(report: RunReport) -> bool:
    return bool(report.incidents) and "not known" not in short_cause(report.by_severity()[0])


def _entry(text: Mapping[str, str], source: str, report: RunReport) -> str:
    return (
        f"**{text['title']}.** {text['curve']} *The team found:* {text['found']} *trimtab says:* "
        f"{_said(report)} *The guides:* {text['playbook']} ({source.split(' (')[0]})"
    )


def _said(report: RunReport) -> str:
    if not report.incidents:
        return report.verdict
    return f"{report.verdict} Cause: {short_cause(report.by_severity()[0])}."


def _chart(report: RunReport) -> str:
    """Return the loss, with the incidents that trimtab opens."""
    column = report.block.column(LOSS)
    rows = np.flatnonzero(column.finite)
    if not len(rows):
        return ""
    values = column.values[rows]
    # A single explosion must not flatten the rest of the curve.
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    last_row = max(len(report.block) - 1, 1)
    marks = []
    for diagnosis in report.incidents:
        incident = diagnosis.incident
        ticks = (incident.onset.tick, (incident.end or incident.last).tick)
        first, last = (across(report.block.row_of(tick) / last_row) for tick in ticks)
        marks.append(
            f'<rect class="i" x="{first:.1f}" y="1" width="{max(last - first, 2):.1f}" '
            f'height="{HEIGHT - 2}"/>'
        )
    points = zip(rows.tolist(), values.tolist(), strict=True)
    curve = line("l", ((row / last_row, _share(value, low, high)) for row, value in points))
    return "".join(marks) + curve


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high <= low else min((value - low) / (high - low), 1.0)
