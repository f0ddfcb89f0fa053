"""The post-mortem of one incident as a page: figures first, then what the Markdown has."""

from trimtab.explain.diagnosis import Diagnosis
from trimtab.report.pages.figures import draw_incident
from trimtab.report.pages.html_text import Html, html, join, tag
from trimtab.report.pages.markdown import inline, to_html
from trimtab.report.pages.page import render_page
from trimtab.report.postmortem import postmortem_sections, postmortem_summary, postmortem_title
from trimtab.report.run_report import RunReport
from trimtab.report.token_figure import draw_tokens

NAME = "postmortem.html"

_ORDER = (
    "Root cause",
    "Symptoms",
    "Hypotheses, ranked",
    "Discriminating evidence",
    "What was done",
    "Action",
    "Smallest remedy",
    "Cost",
    "Verification",
    "Lesson",
    "Class",
    "Evidence",
    "The questions asked",
)
_FOLDED = frozenset({"Evidence", "The questions asked"})
"""Long tables that few readers need: folded until they are opened."""


def postmortem_body(diagnosis: Diagnosis, run: RunReport) -> Html:
    """The figures and sections of a post-mortem, without its heading."""
    parts = [
        tag("p", inline(postmortem_summary(diagnosis, run)), class_="lead"),
        figures(diagnosis, run),
    ]
    sections = postmortem_sections(diagnosis, run)
    for name in _ORDER:
        body = to_html(sections[name])
        if name in _FOLDED:
            parts.append(tag("details", tag("summary", tag("h3", name)), body, class_="fold"))
        else:
            parts.append(tag("section", tag("h3", name), body))
    return join(parts)


def figures(diagnosis: Diagnosis, run: RunReport) -> Html:
    """The signals around the incident, and the histogram of its tokens."""
    drawn = [Html(draw_incident(diagnosis, run.block, is_file=False))]
    if diagnosis.batch is not None and any(diagnosis.batch.histogram):
        drawn.append(Html(draw_tokens(diagnosis.batch, is_file=False)))
    return tag("div", *(tag("figure", figure) for figure in drawn), class_="figures")


def postmortem_page(diagnosis: Diagnosis, run: RunReport, *, back: str | None = None) -> str:
    """The whole page; `back` is where the page of its run is."""
    title = inline(postmortem_title(diagnosis))
    link = tag("p", tag("a", "all charts of the run", href=back)) if back else html("")
    body = tag(
        "main",
        tag("header", tag("h1", title), link),
        postmortem_body(diagnosis, run),
        class_="postmortem",
    )
    return render_page(title=f"Incident {diagnosis.incident.number}, {run.source}", body=body)
