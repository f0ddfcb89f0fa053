"""Page: the figures on docs/scale.md, taken from RESULTS.md and never typed by hand."""

import re
import textwrap
from pathlib import Path

from benchmarks.results import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
_MARKED = re.compile(r"(?s)(<!-- RESULTS.md: (.*?) -->\n).*?(\n<!-- end -->)")
CORPUS = "Corpus: speed of a scan"
PAPER = "On paper, from these rates: "
"""What comes before the sentence on 15e12 tokens in the section of the corpus."""


def write() -> None:
    """Put the figures of RESULTS.md into the page."""
    PAGE.write_text(rendered(), encoding="utf-8")


def rendered() -> str:
    """The page with the figures that RESULTS.md has now."""
    text = PAGE.read_text(encoding="utf-8")
    return _MARKED.sub(lambda found: f"{found[1]}\n{_figures(found[2])}\n{found[3]}", text)


def _figures(title: str) -> str:
    """The text and the tables of a section, without the line about the machine."""
    results = RESULTS.read_text(encoding="utf-8")
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", results)
    if found is None:
        return "Not measured in this version."
    if title == CORPUS:
        return textwrap.fill(found[1].split(PAPER)[1].split("\n")[0], 112)
    _, *parts = found[1].strip().split("\n\n")
    return "\n\n".join(
        part if part.startswith("|") else textwrap.fill(part, 112, break_on_hyphens=False)
        for part in parts
    )
