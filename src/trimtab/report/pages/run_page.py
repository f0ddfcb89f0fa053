"""The page of a run (facts, incidents, charts, events, post-mortems), and that of one incident.

Text is in the HTML, escaped; the scripts only draw the charts, from the JSON beside it.
"""

from collections.abc import Mapping
from typing import Any

from trimtab.core.escaping import Html, Text, html, html_table, join, tag
from trimtab.core.incidents import symptoms_text
from trimtab.core.text import counted, duration_text
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures import compute_discards
from trimtab.explain.time_use import ROLLING, compute_goodput, compute_time_use
from trimtab.report.document import ReportDocument, section_html, text_html
from trimtab.report.figures import draw_small
from trimtab.report.interventions import find_interventions
from trimtab.report.pages.page import facts_list, render_page
from trimtab.report.pages.run_charts import MAX_EVENTS, MAX_INCIDENTS, run_data
from trimtab.report.postmortem import build_postmortem, event_of
from trimtab.report.run_report import RunReport
from trimtab.report.wording import (
    QUIET,
    change_text,
    event_text,
    explanation_lines,
    likeness,
    steps_text,
    tone,
    unsaved_text,
)

DASHBOARD_FILE, POSTMORTEM_FILE = "dashboard.html", "postmortem.html"
_SCRIPTS = ("uplot.min.js", "theme.js", "charts.js", "run.js")
_LIVE_SCRIPTS = (*_SCRIPTS, "live.js")

MAX_POSTMORTEMS = 40
"""Post-mortems inside the page, the most severe ones: each takes about 30 kB."""

_MAX_NOTES = 3

_FOLDED = frozenset({"Evidence", "The questions asked"})
"""Long tables that few readers need: folded until they are opened."""


def dashboard_page(
    report: RunReport,
    *,
    files: Mapping[int, str] | None = None,
    live: Mapping[str, Any] | None = None,
) -> str:
    """Return the page of a run.

    Args:
        report: The run, judged and explained.
        files: The post-mortem of each incident as a file of its own, by number.
        live: What a server adds for a page that follows the run.
    """
    data, missing = run_data(report, live)
    body = join(
        [
            _header(report, live),
            tag(
                "main",
                _incident_section(report, files or {}),
                _intervention_section(report),
                _chart_section(),
                _missing_section(missing),
                _event_section(report),
                _postmortem_section(report),
            ),
        ]
    )
    return render_page(
        title=f"{report.source}: trimtab",
        body=body,
        data=data,
        scripts=_SCRIPTS if live is None else _LIVE_SCRIPTS,
        is_served=live is not None,
    )


def run_facts(report: RunReport) -> list[tuple[str, Text]]:
    """Return the facts in the head of the page."""
    block = report.block
    goodput, discards = compute_goodput(block, report.judged), compute_discards(block)
    facts: list[tuple[str, Text]] = [
        ("steps", f"{block.step.min():,} to {block.step.max():,}"),
        ("records", f"{len(block):,}"),
    ]
    if report.format == "journal":  # a record of a log may stand for many steps
        kept = f"{100 * goodput.share:.1f} % of {goodput.steps_done:,} steps kept"
        facts.append(("goodput", ", ".join(filter(None, (kept, unsaved_text(report))))))
    if goodput.hours is not None:
        hours = goodput.hours
        facts.append(("time", duration_text(3600 * hours)))
        if (use := compute_time_use(block, report.judged)) is not None:
            late = f" ({100 * use.lost_of_late:.1f} % in the last {ROLLING:,} records)"
            facts.append(("time by cause", f"{use}{late if len(block) > ROLLING else ''}"))
        if report.price_per_hour is not None:
            facts.append(("cost", f"${hours * report.price_per_hour:,.2f}"))
    if discards is not None:
        facts.append(("discarded", f"{discards.count:,} steps"))
    known = report.facts
    for name, value in (("dtype", known.dtype), ("ranks", known.ranks), ("seed", known.seed)):
        if value is not None:
            facts.append((name, str(value)))
    if known.link is not None:
        facts.append(("link", known.link))  # text only: a link of a log is not followed
    return [*facts, ("format", report.format), ("rules", report.rules)]


def _header(report: RunReport, live: Mapping[str, Any] | None) -> Html:
    facts = run_facts(report)
    if live is not None:
        facts.insert(0, ("state", str(live.get("ended") or "running")))
    shown = tag("ul", *(tag("li", note) for note in report.notes), class_="notes")
    if len(report.notes) > _MAX_NOTES:
        shown = tag("details", tag("summary", f"{len(report.notes)} notes"), shown)
    elif not report.notes:
        shown = html("")
    verdict = tag("p", report.verdict, class_=f"verdict {report.tone}")
    return tag("header", tag("h1", report.source), verdict, facts_list(facts), shown)


def _incident_section(report: RunReport, files: Mapping[int, str]) -> Html:
    news = tag("ul", id="live-incidents", class_="notes")
    count = len(report.incidents)
    if not count:
        return tag("section", news)
    embedded = {i.incident.number for i in report.most_severe(MAX_POSTMORTEMS)}
    cards, first = [], dict[tuple[str | None, ...], int]()
    for one in report.by_severity()[:MAX_INCIDENTS]:
        like = first.setdefault(likeness(one), one.incident.number)
        cards.append(_card(one, report, like, files, embedded))
    more = f"{count - MAX_INCIDENTS} more are not listed." if count > MAX_INCIDENTS else ""
    return tag(
        "section",
        tag("h2", f"{counted(count, 'incident')}{', worst first' * (count > 1)}"),
        tag("div", *cards, class_="incidents"),
        tag("p", more) if more else html(""),
        news,
    )


def _card(
    diagnosis: Diagnosis, run: RunReport, like: int, files: Mapping[int, str], embedded: set[int]
) -> Html:
    incident, change = diagnosis.incident, change_text(diagnosis).replace("->", "→")
    number = str(incident.number)
    zoom = tag(
        "button",
        number,
        type="button",
        class_="zoom",
        data_incident=number,
        title="Zoom to this incident",
    )
    links = []
    if incident.number in embedded:
        links.append(tag("a", "post-mortem", href=f"#incident-{number}"))
    if incident.number in files:
        links.append(tag("a", "file", href=files[incident.number]))
    is_first = like == incident.number
    lines = list(explanation_lines((diagnosis,), run))
    if not is_first:
        lines = [line for line in lines if line[0] in ("note", "change", "do")]
        lines.insert(-1, ("cause", f"as in incident {like}."))
    said = [tag("p", tag("b", name.capitalize()), f" {text}") for name, text in lines]
    symptoms = "; ".join(filter(None, (symptoms_text(incident.symptoms), change)))
    return tag(
        "article",
        tag(
            "h3",
            zoom,
            f" {steps_text(incident)} ",
            tag("span", diagnosis.incident_class, class_=f"tag {tone(diagnosis)}"),
        ),
        draw_small(diagnosis, run.block),
        tag("p", symptoms, class_="notes"),
        *said,
        tag("p", Html(" ".join(links))) if links else html(""),
        class_=tone(diagnosis),
    )


def _intervention_section(report: RunReport) -> Html:
    acts = find_interventions(report.block)
    if not acts:
        return html("")
    rows = [
        (f"{act.step:,}", act.what, act.author, act.reason, act.expected, act.outcome)
        for act in acts[-MAX_EVENTS:]
    ]
    head = ("step", "what was done", "by", "why", "expected", "measured")
    more = f"The last {MAX_EVENTS:,} of {len(acts):,}." if len(acts) > MAX_EVENTS else ""
    return tag(
        "section",
        tag("h2", "Interventions"),
        html_table(head, rows, numeric=(0,), class_="cards"),
        tag("p", more) if more else html(""),
    )


def _chart_section() -> Html:
    keys = {"drag": "zoom", "← →": "move", "+ -": "zoom", "n p": "next, previous incident"}
    hint = join(Html(f"{tag('kbd', key)} {html(what)} ") for key, what in keys.items())
    whole = tag("button", "whole run", type="button", id="whole")
    log = tag("button", "log axis", type="button", id="log", aria_pressed="false", title="key l")
    return tag(
        "section",
        tag("h2", "Charts"),
        tag("div", whole, log, tag("span", hint, class_="hint"), class_="tools"),
        tag("noscript", tag("p", "The charts need JavaScript; everything else does not.")),
        tag("div", id="charts"),
    )


def _missing_section(missing: Mapping[str, list[str]]) -> Html:
    if not missing:
        return html("")
    rows = [(", ".join(titles), how) for how, titles in missing.items()]
    title = tag("summary", tag("h2", f"Not recorded ({sum(map(len, missing.values()))})"))
    shown = html_table(("signal", "how to record it"), rows)
    return tag("section", tag("details", title, shown))


def _event_section(report: RunReport) -> Html:
    events = [event for event in report.block.events if event.kind not in QUIET]
    if not events:
        return html("")
    rows = [(f"{e.step:,}", e.kind, event_text(e)) for e in events[:MAX_EVENTS]]
    title = tag("summary", tag("h2", f"Events and notes ({len(events):,})"))
    shown = html_table(("step", "event", "facts"), rows, numeric=(0,))
    return tag("section", tag("details", title, shown))


def postmortem_page(diagnosis: Diagnosis, run: RunReport, *, back: str | None = None) -> str:
    """Return the page of one incident; `back` is the address of the page of its run."""
    document = build_postmortem(diagnosis, run)
    link = tag("p", tag("a", "all charts of the run", href=back)) if back else html("")
    body = tag(
        "main",
        tag("header", tag("h1", document.title), link),
        _postmortem_body(document, "h2"),
        class_="postmortem",
    )
    return render_page(title=f"Incident {diagnosis.incident.number}, {run.source}", body=body)


def _postmortem_section(report: RunReport) -> Html:
    shown = report.most_severe(MAX_POSTMORTEMS)
    if not shown:
        return html("")
    parts = []
    for incident in shown:
        of = incident.incident
        what = f"{event_of(incident)} at step {of.onset.step:,}, {incident.incident_class}"
        parts.append(
            tag(
                "details",
                tag("summary", tag("h3", f"Incident {of.number}: {what}")),
                tag(
                    "div", _postmortem_body(build_postmortem(incident, report)), class_="postmortem"
                ),
                id=f"incident-{of.number}",
            )
        )
    return tag("section", tag("h2", "Post-mortems"), *parts, id="postmortems")


def _postmortem_body(document: ReportDocument, heading: str = "h3") -> Html:
    """Return the figures and sections of a post-mortem, without its heading."""
    figures = [tag("figure", figure.draw(False), tabindex="0") for figure in document.figures]
    parts = [tag("p", text_html(document.lead), class_="lead")]
    for at, section in enumerate(document.sections):
        body, title = section_html(section), tag(heading, section.title)
        if section.title in _FOLDED:
            parts.append(tag("details", tag("summary", title), body, class_="fold"))
        else:
            parts.append(tag("section", title, body))
        if at == 0:  # the summary comes before the curves
            parts.append(tag("div", *figures, class_="figures"))
    return join(parts)
