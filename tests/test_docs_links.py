"""Links between pages lead somewhere, as files and as GitHub shows them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples/plugin/README.md"]


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


def anchors_on_github(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_anchors_lead_somewhere_on_github_too() -> None:
    links = [
        (page, page if not target else page.parent / target, anchor)
        for page in PAGES
        for target, anchor in re.findall(
            r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")
        )
    ]
    assert len(links) > 20
    broken = [
        f"{page.name}: {target.name}#{anchor}"
        for page, target, anchor in links
        if target.suffix == ".md" and anchor not in anchors_on_github(target)
    ]
    assert not broken


def test_the_files_and_tests_of_the_architecture_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w/]+/[\w/]+\.py)`", page)
    assert len(names) > 20
    places = (ROOT, ROOT / "src" / "trimtab")
    assert [name for name in names if not any((at / name).exists() for at in places)] == []
