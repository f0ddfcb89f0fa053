"""A gallery of published incidents: docs/incidents.md and its picture.

Texts are ours (gallery.toml), numbers are the published ones, and what trimtab says is computed.
"""

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
_DOCS = Path(__file__).parents[2] / "docs"
_PAGE, _PICTURE = _DOCS / "incidents.md", _DOCS / "incidents.svg"

_HEAD = """\
# Incidents of real runs

Training incidents that teams have published: what the curve did, what the team found, what trimtab
says of the same numbers, and what guides to stable training advise. Trimtab is given the published
series alone, often a few dozen points read off a plot, and the names of trainer and precision,
never the text. Where it says less than the team knew, or something else, that stands here too.
The patterns of the lab, whose causes are known because they were planted, are in [lab.md](lab.md).

![the loss of each incident; red: where trimtab opens one](incidents.svg)
"""


def write_gallery(folder: Path) -> None:
    """Write the page and its picture from the stories in a folder."""
    texts = tomllib.loads(_TEXTS.read_text(encoding="utf-8"))
    stories = {story["id"]: story for story in read_stories(folder, sparse=False)}
    reports = {id: story_report(folder, stories[id]) for id in texts}
    parts = [_HEAD]
    for number, (id, text) in enumerate(texts.items(), start=1):
        parts.append(_entry(number, text, str(stories[id]["source"]), reports[id]))
    _PAGE.write_text("\n".join(parts), encoding="utf-8")
    titles = [f"{n}. {text['title']}" for n, text in enumerate(texts.values(), start=1)]
    charts = [_chart(report) for report in reports.values()]
    _PICTURE.write_text(draw_grid(titles, charts), encoding="utf-8")


def _entry(number: int, text: Mapping[str, str], source: str, report: RunReport) -> str:
    return f"""
## {number}. {text["title"]}

| | |
| --- | --- |
| curve | {text["curve"]} |
| found by the team | {text["found"]} |
| trimtab | {_said(report)} |
| advice of the guides | {text["playbook"]} |
| source | {source.split(" (")[0]} |
"""


def _said(report: RunReport) -> str:
    """Return the verdict, and the cause of the worst incident."""
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
