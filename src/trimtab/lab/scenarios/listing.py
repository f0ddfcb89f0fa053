"""One-line descriptions of the kinds of interventions, for `trimtab lab list`."""

from dataclasses import dataclass

from trimtab.lab.scenarios.catalogue import Kind

_ONSET = 300
_SEEDS = range(20)
"""Enough to find the shortest and the longest duration that a kind draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One kind in a line."""

    title: str
    strengths: str
    """The strengths at severity 0 and severity 1."""

    lasts: str
    base: str
    """The kind of run that it needs."""


def describe(kind: Kind) -> Description:
    """What a kind does, how strongly, and for how long."""
    mild, severe = (
        [kind(onset=_ONSET, severity=severity, seed=seed) for seed in _SEEDS]
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
        return "until the end"
    first, last = steps[0], steps[-1]
    if first != last:
        return f"{first} to {last} steps"
    return "1 step" if last == 1 else f"{last} steps"
