"""How names and texts out of a log are put into a sentence."""

from collections.abc import Sequence

_SHOWN_NAMES = 8
"""Names spelled out in one sentence; a log with a learning rate per group has dozens."""

_SHOWN_CHARS = 60


def printable(text: str) -> str:
    """The text without control characters, which would act in a terminal or on a page."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def quoted(text: str) -> str:
    """The text in quotes, cut to what fits in a sentence."""
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")


def listed(names: Sequence[str]) -> str:
    """The names in quotes, the first few of them if they are many."""
    shown = ", ".join(quoted(name) for name in names[:_SHOWN_NAMES])
    return f"{shown} and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else shown
