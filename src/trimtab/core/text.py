"""Numbers, counts and text from logs as people read them."""

import math


def digits(value: float | None) -> str:
    """Return a value in four significant digits; None is "not recorded"."""
    if value is None:
        return "not recorded"
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Return the text on one line, with control characters replaced by `?`.

    They would act in a terminal or on a page.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)
