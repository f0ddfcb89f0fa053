"""Numbers, counts and text from logs as people read them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, SupportsInt

from trimtab.core.jsonable import number_from_json


def digits(value: float | None) -> str:
    """Return a value in four significant digits; None is "not recorded"."""
    if value is None:
        return "not recorded"
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def compared_losses(facts: Mapping[str, Any]) -> str:
    """Return the losses of an `undo outcome` as a sentence: now, before the fault, when saved."""
    now, fault, saved = (
        digits(number_from_json(facts.get(name)))
        for name in ("loss_after", "loss_before_fault", "loss_before")
    )
    before = f"{fault} before the fault and " if "loss_before_fault" in facts else ""
    return f"the loss is {now}; it was {before}{saved} when the restored state was saved"


def times_text(ratio: float) -> str:
    """Return a ratio as people say it: `2.9 times`, `2,930 times`."""
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:,.0f} times"


def duration_text(seconds: float) -> str:
    """Return a time in the unit that people would use: `12 s`, `3.5 minutes`, `2.1 hours`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 3600 else f"{seconds / 3600:,.1f} hours"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def count_sentence(count: SupportsInt, template: str) -> str:
    """Return a sentence about a count: of 2, `row{s} {is} left out` is `2 rows are left out.`"""
    forms = {"{s}": "s", "{is}": "are", "{has}": "have"}
    if int(count) == 1:
        forms = {"{s}": "", "{is}": "is", "{has}": "has"}
    for mark, form in forms.items():
        template = template.replace(mark, form)
    return f"{int(count):,} {template}."


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return some names on one line: `loss, lr and 30 more`."""
    shown = [printable(name) for name in names]
    more = f" and {len(shown) - most:,} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def clause(sentence: str) -> str:
    """Return a sentence as a part of another: `Roll back.` is `roll back`."""
    return uncapitalized(sentence).rstrip(".")


def uncapitalized(text: str) -> str:
    """Return a text that does not begin a sentence: `The loss` is `the loss`, but `KL` is `KL`."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def printable(text: str) -> str:
    """Return the text on one line, with control characters replaced by `?`.

    They would act in a terminal or on a page.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)
