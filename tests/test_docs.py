"""What the docs say about the source tree is true."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_files_and_tests_that_are_named_exist() -> None:
    names = re.findall(r"`([\w/]+/[\w/]+\.py)`", PAGE)
    assert len(names) > 20
    places = (ROOT, ROOT / "src" / "trimtab")
    assert [name for name in names if not any((at / name).exists() for at in places)] == []
