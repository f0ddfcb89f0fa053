"""A gallery of published incidents: docs/incidents.md and its picture.

Texts are ours (gallery.toml), numbers are the published ones, and what trimtab says is computed.
"""

import html
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.causes.stories import read_stories, story_report
from trimtab.core.signals import LOSS
from trimtab.report.run_report import RunReport
from trimtab.report.wording import short_cause

_TEXTS = Path(__file__).parent / "gallery.toml"
_DOCS = Path(__file__).parents[2] / "docs"
_PAGE, _PICTURE = _DOCS / "incidents.md", _DOCS / "incidents.svg"

_COLUMNS = 4
_WIDTH, _HEIGHT, _GAP, _TITLE = 210, 110, 18, 20

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
    titles = [text["title"] for text in texts.values()]
    _PICTURE.write_text(_draw(titles, list(reports.values())), encoding="utf-8")


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


def _draw(titles: list[str], reports: list[RunReport]) -> str:
    """Draw the losses as small charts. By hand, because the colours follow the reader's theme."""
    rows = -(-len(reports) // _COLUMNS)
    width = _COLUMNS * (_WIDTH + _GAP) - _GAP
    height = rows * (_HEIGHT + _TITLE + _GAP) - _GAP
    style = (
        "text{font:11px sans-serif;fill:#444}.f{fill:none;stroke:#bbb}.l{fill:none;stroke:#1f5fa8}"
        ".i{fill:#c0392b;opacity:.18}@media(prefers-color-scheme:dark){text{fill:#ccc}"
        ".f{stroke:#555}.l{stroke:#7db4f0}.i{fill:#ff7b6b;opacity:.28}}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{style}</style>",
    ]
    for place, (title, report) in enumerate(zip(titles, reports, strict=True)):
        x = place % _COLUMNS * (_WIDTH + _GAP)
        y = place // _COLUMNS * (_HEIGHT + _TITLE + _GAP)
        short = title if len(title) <= 36 else f"{title[:35]}…"
        parts.append(f'<g transform="translate({x} {y})">')
        parts.append(f'<text x="0" y="13">{place + 1}. {html.escape(short)}</text>')
        parts.append(f'<g transform="translate(0 {_TITLE})">{_panel(report)}</g></g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(report: RunReport) -> str:
    column = report.block.column(LOSS)
    rows = np.flatnonzero(column.finite)
    frame = f'<rect class="f" x=".5" y=".5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}"/>'
    if not len(rows):
        return frame
    values = column.values[rows]
    # A single explosion must not flatten the rest of the curve.
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    across = max(len(report.block) - 1, 1)

    def place(row: int) -> float:
        return 4 + (_WIDTH - 8) * row / across

    points = " ".join(
        f"{place(int(row)):.1f},{4 + (_HEIGHT - 8) * (1 - _share(float(value), low, high)):.1f}"
        for row, value in zip(rows, values, strict=True)
    )
    marks = []
    for diagnosis in report.incidents:
        incident = diagnosis.incident
        first = place(report.block.row_of(incident.onset.tick))
        last = place(report.block.row_of((incident.end or incident.last).tick))
        marks.append(
            f'<rect class="i" x="{first:.1f}" y="1" width="{max(last - first, 2):.1f}" '
            f'height="{_HEIGHT - 2}"/>'
        )
    return f'{frame}{"".join(marks)}<polyline class="l" points="{points}"/>'


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high <= low else min((value - low) / (high - low), 1.0)
