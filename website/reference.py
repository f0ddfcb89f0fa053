"""The parts of docs/ that are generated from the code, committed so that a code host shows them.

python -m website.reference          writes them; a test says if they are stale
"""

import re
from collections.abc import Callable
from pathlib import Path

from website.api_page import api_text
from website.commands_page import commands_text
from website.llms import llms_text
from website.settings_page import settings_text

DOCS = Path(__file__).parents[1] / "docs"

GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "api.md": ("api", api_text),
    "command-line.md": ("commands", commands_text),
    "settings.md": ("settings", settings_text),
}
"""By page: the name of the part between its two marks, and what stands there."""


def with_reference(page: str) -> str:
    """Return the text of a page with its generated part as the code has it now."""
    name, make = GENERATED[page]
    text = (DOCS / page).read_text(encoding="utf-8")
    pattern = rf"(?s)(<!-- generated: {name} -->\n).*(<!-- end -->\n)"
    return re.sub(pattern, lambda marks: f"{marks[1]}\n{make()}\n\n{marks[2]}", text)


if __name__ == "__main__":
    (DOCS / "llms.txt").write_text(llms_text(), encoding="utf-8")
    for page in GENERATED:
        (DOCS / page).write_text(with_reference(page), encoding="utf-8")
