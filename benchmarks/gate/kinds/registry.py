"""Kind: a sort of healthy run and how its final quality is measured.

The kinds are cut into a half that thresholds may be looked at with (`tune`) and one that only
reports, by a hash of their names, before any of them was run.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gate.session import Session


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A sort of healthy run."""

    name: str
    train: Callable[[Session], float]
    """Trains by `Session.step`; returns the quality that the run ends with."""
    measure: str
    higher_is_better: bool


KINDS: dict[str, Kind] = {}


def add(
    name: str, measure: str, train: Callable[[Session], float], *, higher_is_better: bool = False
) -> None:
    """Register a kind."""
    KINDS[name] = Kind(name=name, train=train, measure=measure, higher_is_better=higher_is_better)


def halves() -> dict[str, str]:
    """Which half each kind belongs to."""
    ordered = sorted(KINDS, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: ("tune", "report")[place % 2] for place, name in enumerate(ordered)}
