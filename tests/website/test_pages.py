"""What is generated for the site, and where its pages are in the navigation."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from website.llms import llms_text
from website.reference import DOCS, GENERATED, with_reference
from website.stage import stage

ROOT = Path(__file__).parents[2]


def in_navigation(nav: Any) -> list[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in in_navigation(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    listed = in_navigation(config["project"]["nav"])
    written = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(page for page in listed if not page.startswith("project/")) == sorted(written)


@pytest.mark.parametrize("page", GENERATED)
def test_the_generated_reference_is_committed_as_the_code_has_it(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == with_reference(page), (
        "stale: run python -m website.reference"
    )


def test_the_list_for_language_models_has_every_page_and_is_committed() -> None:
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    assert text == llms_text(), "stale: run python -m website.reference"
    listed = re.findall(r"(?m)^- \[.+\]\((.+?)\): \S.*$", text)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_links_out_of_the_docs_become_pages(tmp_path: Path) -> None:
    docs, source = tmp_path / "docs", tmp_path / "src" / "part"
    for folder in (docs / "deep", source):
        folder.mkdir(parents=True)
    (source / "__init__.py").write_text('"""What this folder does."""\n')
    (source / "one.py").write_text('TEXT = "```"\n')
    (tmp_path / "NEWS.md").write_text("[back](docs/deep/page.md#top)\n")
    (docs / "deep" / "page.md").write_text(
        "# Top\n[a](../../src/part/one.py) [b](../../src/part) [c](../../NEWS.md)\n"
        "`[no](link.md)`\n\n| `a \\| b` |\n\n```\n[no](link.md)\n```\n\n[e](https://example.org/x.md)\n"
    )
    out = tmp_path / "out"
    stage(tmp_path, out)
    page = (out / "deep" / "page.md").read_text()
    assert "[a](../project/src/part/one.py.md)" in page
    assert "[b](../project/src/part/index.md) [c](../project/NEWS.md)" in page
    assert page.count("[no](link.md)") == 2
    assert "| `a | b` |" in page
    assert "(https://example.org/x.md)" in page
    assert (out / "project" / "NEWS.md").read_text() == "[back](../deep/page.md#top)\n"
    assert 'TEXT = "```"' in (out / "project" / "src" / "part" / "one.py.md").read_text()
    assert "What this folder does." in (out / "project" / "src" / "part" / "index.md").read_text()


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("[gone](../src/gone.py)\n")
    with pytest.raises(FileNotFoundError, match=r"page\.md: the link to \.\./src/gone\.py"):
        stage(tmp_path, tmp_path / "out")
