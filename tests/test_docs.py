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
