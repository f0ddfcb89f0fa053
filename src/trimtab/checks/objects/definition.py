"""PreflightCheck: one thing that can be wrong with the objects of a run.

A check is a function whose parameters name its measurements. It runs when all of them can be made:

    @preflight_check("PF010", "Activations explode or vanish with depth", ...)
    def activations(first_pass: Pass) -> Seen:
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.checks.rule import Level


class NotMeasured(Exception):
    """A measurement that these objects do not allow; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check saw, and whether it is a problem."""

    what: str
    """The numbers of this model, in a sentence."""
    level: Level | None = None
    """None if all is well."""
    fix: str = ""
    """What to do, for these numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightCheck:
    """One thing that can be wrong with the objects of a run."""

    id: str
    """PF and three digits; never reused."""
    title: str
    """The problem, as it is reported."""
    mechanism: str
    """Why it does harm, in one sentence."""
    source: str
    """Where the thresholds come from."""
    cannot_see: str
    """What the check does not look at."""
    run: Callable[..., Seen]
    needs: tuple[str, ...]
    """The measurements that it takes."""


def preflight_check(
    id: str, title: str, *, mechanism: str, source: str, cannot_see: str
) -> Callable[[Callable[..., Seen]], PreflightCheck]:
    """Turn a function into a check; its parameters are the measurements."""

    def make(run: Callable[..., Seen]) -> PreflightCheck:
        return PreflightCheck(
            id=id,
            title=title,
            mechanism=mechanism,
            source=source,
            cannot_see=cannot_see,
            run=run,
            needs=tuple(inspect.signature(run).parameters),
        )

    return make


MAX_NAMES = 3
"""Parameters or layers that are named one by one."""


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
