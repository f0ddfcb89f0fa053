"""The card of a report in the cell of a notebook."""

from collections.abc import Sequence

from trimtab.core.card import MAX_BYTES, card, clip, fitting, fold, row
from trimtab.core.escaping import Html, tag
from trimtab.core.incidents import symptoms_text
from trimtab.core.text import counted
from trimtab.explain.diagnosis import Diagnosis
from trimtab.report import wording
from trimtab.report.document import prose, text_html
from trimtab.report.figures import RunCurve
from trimtab.report.run_report import RunReport

MAX_CARDS = 3
"""Groups of incidents that are shown at once; the others are folded."""

_SHOWN = ("found", "note", "alike", "cause", "do")
"""Lines of an incident that are not folded."""


def report_card(report: RunReport) -> Html:
    """Return the card of a run: verdict, curve, incidents, notes."""
    origin = tag("span", wording.origin_text(report), class_="trimtab-mute")
    source = tag("div", tag("b", clip(report.source)), " ", origin)
    parts = [source, RunCurve.from_report(report).draw()]
    acts = (wording.discards_text(report.block), wording.proposal_text(report.block))
    parts += [tag("div", clip(text), class_="warn") for text in acts if text]
    groups = wording.group_alike(report.by_severity())
    cards = fitting((_incident(alike, report) for alike in groups), MAX_BYTES // 2)
    if left_out := sum(map(len, groups[len(cards) :])):
        cards.append(tag("div", f"{left_out:,} less severe incidents are not listed here."))
    more = counted(sum(map(len, groups[MAX_CARDS:])), "more incident")
    parts += [*cards[:MAX_CARDS], fold(more, cards[MAX_CARDS:])]
    notes = fitting((tag("div", clip(note)) for note in report.notes), MAX_BYTES // 5)
    parts.append(fold(counted(len(report.notes), "note"), notes))
    return card(report.tone, report.verdict, *parts)


def _incident(alike: Sequence[Diagnosis], report: RunReport) -> Html:
    worst = alike[0]
    incident, change = worst.incident, wording.change_text(worst)
    title = tag(
        "div",
        tag("b", f"incident {incident.number}"),
        f", {wording.steps_text(incident)}, ",
        tag("b", worst.incident_class, class_=wording.tone(worst)),
        clip(f": {symptoms_text(incident.symptoms)}{', ' * bool(change)}"),
        tag("span", change, class_="trimtab-whole"),
    )
    shown: list[Html] = []
    folded: list[Html] = []
    for name, text in wording.explanation_lines(alike, report):
        (shown if name in _SHOWN else folded).append(row(name, text_html(prose(clip(text)))))
    return tag("div", title, *shown, fold("evidence and fix", folded), class_="trimtab-part")
