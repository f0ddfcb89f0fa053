"""A kind of disturbance in words, for lists."""

from dataclasses import dataclass

from trimtab.lab.scenarios.catalogue import Kind

_SOME_ONSET = 300
_SOME_SEEDS = range(20)
"""Enough to meet the shortest and the longest that a kind draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One kind in a line."""

    title: str
    strengths: str
    """What severity 0 and severity 1 are."""

    lasts: str
    base: str
    """What the run has to be."""


def describe(kind: Kind) -> Description:
    """What a kind does, between which strengths, and for how long."""
    mild, severe = (
        [kind(onset=_SOME_ONSET, severity=severity, seed=seed) for seed in _SOME_SEEDS]
        for severity in (0.0, 1.0)
    )
    low, high = f"{mild[0].strength:.3g}", f"{severe[0].strength:.3g}"
    spread = low if low == high else f"{low} to {high}"
    spans = sorted({one.steps for one in (*mild, *severe) if one.steps is not None})
    return Description(
        title=kind.title,
        strengths=f"{spread} {kind.strength_name}",
        lasts="the whole run" if kind.from_start else _span(spans),
        base=kind.base,
    )


def _span(steps: list[int]) -> str:
    if not steps:
        return "to the end"
    first, last = steps[0], steps[-1]
    if first != last:
        return f"{first} to {last} steps"
    return "1 step" if last == 1 else f"{last} steps"
