"""What the docs say about the source tree is true."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def files_in(section: str) -> list[str]:
    """The source files that the table of a section names, in its order."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row.split("|")[1])]


def test_the_files_to_follow_exist() -> None:
    for title in ("The path of a step", "The path of a log"):
        names = files_in(title)
        assert names
        missing = [name for name in names if not (ROOT / "src" / "trimtab" / name).exists()]
        assert not missing


def tables_in(text: str) -> list[str]:
    """The lines of its tables."""
    return [line for line in text.splitlines() if line.startswith("|")]


def section(page: str, title: str) -> str:
    """One section of a page, with its own subsections."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_figures_on_pages_are_those_that_were_measured() -> None:
    assert tables_in(section("docs/pages.md", "Cost")) == tables_in(
        section("benchmarks/RESULTS.md", "Pages")
    )


def test_the_figures_on_causes_are_those_that_were_measured() -> None:
    shown = [
        *tables_in(section("docs/causes.md", "How often it is right")),
        *tables_in(section("docs/causes.md", "What speaks for each cause")),
    ]
    measured = section("benchmarks/RESULTS.md", "Causes in the lab")
    outside = tables_in(section("benchmarks/RESULTS.md", "Causes outside the lab"))
    stories = outside[: outside.index("| incident | truth | named | said, % |")]
    assert shown == [*stories, *tables_in(measured)]
    seeds = re.search(r"Seeds \[.*", measured)
    assert seeds
    assert seeds[0] in section("docs/causes.md", "How often it is right")


def test_the_figures_on_a_corpus_are_those_that_were_measured() -> None:
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    shown = tables_in(section("docs/corpus.md", "Figures"))
    titles = re.findall(r"(?m)^## (Corpus: .*)$", text)
    measured = [tables_in(section("benchmarks/RESULTS.md", title)) for title in titles]
    assert sorted(shown) == sorted(line for table in measured for line in table)
