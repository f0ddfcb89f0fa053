"""What the views of a run show of its incidents, read back from what they print."""

import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.explain.diagnosis import Diagnosis
from trimtab.report.pages.run_page import dashboard_page
from trimtab.report.postmortem import write_postmortem
from trimtab.report.run_report import RunReport
from trimtab.report.terminal import report_view
from trimtab.report.wording import group_alike

Shown = dict[int, dict[str, Any]]
"""By the number of the incident: those of class, onset, do and checkpoint that a view shows."""


def truth_of(report: RunReport) -> Shown:
    """Return what every view has to show."""
    return {one.incident.number: _truth(one) for one in report.incidents}


def _truth(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "class": str(diagnosis.incident.incident_class),
        "onset": diagnosis.incident.onset.step,
        "do": diagnosis.action.instruction,
        "checkpoint": diagnosis.checkpoint,
    }


def disagreements(truth: Shown, views: Iterator[tuple[str, Shown]]) -> list[str]:
    """Return each place in which a view shows something else than what is true."""
    found = []
    for name, shown in views:
        for number, parts in shown.items():
            for part, value in parts.items():
                true = truth.get(number, {}).get(part)
                if value != true:
                    found.append(f"{name}, incident {number}: {part} is {value!r}, not {true!r}")
    return found


def report_views(report: RunReport) -> Iterator[tuple[str, Shown]]:
    """Yield what each view of a report shows."""
    yield "headline", _headline(report)
    as_json = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    yield "JSON", of_json(as_json)
    yield "terminal", _terminal(report)
    page = dashboard_page(report)
    yield "cards of the page", _page_cards(page)
    yield "charts of the page", _page_charts(page)
    yield "card", _card(report._repr_html_())
    for one in report.incidents:
        text = write_postmortem(one, report)
        yield "post-mortem", {one.incident.number: of_postmortem(text)}


def of_json(printed: Mapping[str, Any]) -> Shown:
    """Return what a report as JSON says."""
    return {part["incident"]["number"]: of_incident_json(part) for part in printed["incidents"]}


def of_incident_json(part: Mapping[str, Any]) -> dict[str, Any]:
    incident = part["incident"]
    return {
        "class": incident["incident_class"],
        "onset": incident["onset"]["step"],
        "do": part["action"]["instruction"],
        "checkpoint": part["checkpoint"],
    }


def of_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line of observer.jsonl says about an incident."""
    names = {
        "class": "incident_class",
        "do": "action",
        "onset": "onset",
        "checkpoint": "checkpoint",
    }
    return {part: facts[name] for part, name in names.items()}


def of_files(folder: Path) -> Iterator[tuple[str, Shown]]:
    """Yield what the files of the incidents of a run say."""
    for file in sorted(folder.glob("*/incident.json")):
        printed = json.loads(file.read_text())
        number = printed["incident"]["number"]
        yield "incident.json", {number: of_incident_json(printed)}
        onset = {"onset": int(file.parent.name.partition("step-")[2])}
        yield "name of the folder", {number: onset}
        yield "postmortem.md", {number: of_postmortem((file.parent / "postmortem.md").read_text())}
        page = _text((file.parent / "postmortem.html").read_text())
        yield "postmortem.html", {number: {"do": _one(r"\nto do\n(.*)\n", page)}}


def of_postmortem(text: str) -> dict[str, Any]:
    """Return what a post-mortem says; everything that it says twice must be said alike."""
    text = re.sub(r"\\(.)", r"\1", text)
    title = re.match(r"# Incident \d+: .* at step ([\d,]+), ([a-z ]+) \(", text)
    assert title is not None, text[:200]
    do = _one(r"\n\| to do \| (.*) \|\n", text)
    action = _one(r"\n## 5 Remediation\n\n\*\*Now\*\*: (.*)\n", text)
    assert do is not None, text
    assert action is not None, text
    assert action.startswith(do), (do, action)
    named = _one(r"\n## Type\n\n([A-Z][a-z ]+)[,:]", text)
    assert named is not None, text
    assert named.lower() == title[2], text[-300:]
    return {"class": title[2], "onset": int(title[1].replace(",", "")), "do": do}


def _headline(report: RunReport) -> Shown:
    """Return what the headline says of the incident that it is about."""
    pattern = r"(.*?) (?:at|since) step ([\d,]+): (.*?)(?:; (?:only |steps are )?(?:\d|row).*)?\.$"
    said = re.match(pattern, report.verdict)
    worst = report.by_severity()[0] if report.incidents else None
    if said is None or worst is None or worst.needs_nothing:
        return {}  # what is over is named in words, with the step at which it ended
    shown = {"onset": int(said[2].replace(",", "")), "do": f"{said[3][:1].upper()}{said[3][1:]}."}
    if said[1].lower() != worst.incident.main_symptom.lower():
        shown["class"] = said[1].lower()
    return {worst.incident.number: shown}


def _terminal(report: RunReport) -> Shown:
    console = Console(width=600, file=io.StringIO(), record=True)
    console.print(report_view(report, 600))
    found: Shown = {}
    number = 0
    for line in console.export_text().splitlines():
        title = re.match(r"incident (\d+), steps? ([\d,]+)(?: to [\d,]+)?, ([a-z ]+): ", line)
        if title:
            number = int(title[1])
            found[number] = {"onset": int(title[2].replace(",", "")), "class": title[3]}
        elif said := re.match(r"  do +(.*?) *$", line):
            found[number]["do"] = said[1]
    assert len(found) == min(len(group_alike(report.incidents)), 3)
    return found


def _page_cards(page: str) -> Shown:
    found: Shown = {}
    for card in re.findall(r"<article.*?</article>", page, re.DOTALL):
        number = int(re.search(r'data-incident="(\d+)"', card)[1])  # type: ignore[index]
        said = re.search(r"steps? ([\d,]+)(?: to [\d,]+)?\s+(.*)", _text(card))
        assert said is not None, _text(card)
        named = re.search(r'<span class="tag [a-z]+">(.*?)</span>', card)
        do = re.search(r"<b>Do</b> (.*?)</p>", card)
        assert named is not None, card
        assert do is not None, card
        found[number] = {
            "onset": int(said[1].replace(",", "")),
            "class": named[1],
            "do": html.unescape(do[1]),
        }
    return found


def _page_charts(page: str) -> Shown:
    data = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert data is not None
    return {
        one["number"]: {"onset": one["first"], "class": one["text"].partition(":")[0]}
        for one in json.loads(data[1])["incidents"]
    }


def _card(card: str) -> Shown:
    found: Shown = {}
    number = 0
    parts = _text(card).split("\n")
    for place, part in enumerate(parts):
        if re.fullmatch(r"incident \d+", part):
            number = int(part.split()[1])
            said = re.fullmatch(r", steps? ([\d,]+)(?: to [\d,]+)?,", parts[place + 1].strip())
            assert said is not None, parts[place : place + 4]
            onset = int(said[1].replace(",", ""))
            found[number] = {"onset": onset, "class": parts[place + 2]}
        elif part == "do":
            found[number]["do"] = parts[place + 1]
    return found


def _text(page: str) -> str:
    page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r"</?(?:code|strong|em|wbr)[^>]*>", "", page)
    lines = html.unescape(re.sub(r"<[^>]+>", "\n", page)).split("\n")
    return "\n".join(line for line in lines if line.strip())


def _one(pattern: str, text: str) -> str | None:
    found: list[str] = re.findall(pattern, text)
    assert len(found) <= 1, found
    return found[0] if found else None
