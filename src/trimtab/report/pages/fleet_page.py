"""The page of many runs: who needs attention first, and what goes wrong most often."""

from collections.abc import Mapping
from typing import Any

from trimtab.report.pages.html_text import Html, tag
from trimtab.report.pages.page import render_page

SCRIPTS = ("theme.js", "fleet.js")

_COLUMNS = (
    ("state", None),
    ("run", None),
    ("loss", "n"),
    ("curve", None),
    ("step", "n"),
    ("goodput", "n"),
    ("open", "n"),
    ("incidents", "n"),
    ("tokens/s", "n"),
    ("time left", "n"),
    ("last record", "n"),
    ("why", None),
)


def fleet_page(fleet: Mapping[str, Any]) -> str:
    """The whole page; its script makes the rows from the data, as text."""
    head = [tag("th", name, scope="col", class_=kind) for name, kind in _COLUMNS]
    causes = [
        tag("th", name, scope="col", class_=kind)
        for name, kind in (("cause", None), ("incidents", "n"), ("runs", "n"), ("open", "n"))
    ]
    to_causes = tag("a", "incidents by cause", href="#by-cause")
    body = tag(
        "main",
        tag(
            "header",
            tag("h1", "Runs"),
            tag("p", tag("span", "", id="counts", role="status"), Html(" "), to_causes),
        ),
        tag("section", _table("runs", head, "All runs")),
        tag(
            "section",
            tag("h2", "Incidents by cause", id="by-cause"),
            _table("causes", causes, "Causes"),
        ),
        tag("noscript", tag("p", "This page needs JavaScript.")),
    )
    return render_page(
        title="trimtab: runs", body=body, data=fleet, scripts=SCRIPTS, is_served=True
    )


def _table(id: str, head: list[Html], label: str) -> Html:
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", id=id), class_="cards fleet")
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)
