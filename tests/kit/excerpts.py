"""What a page shows of a command's output: an excerpt, with three dots where lines are left out."""

import re


def matches(shown: str, printed: str) -> bool:
    """Whether the lines are those that were printed; a line of three dots stands for any."""
    parts = [re.escape(part) for part in _lines(shown).split("\n...\n")]
    return re.fullmatch(r"\n(?:.*\n)*".join(parts), _lines(printed)) is not None


def _lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))
