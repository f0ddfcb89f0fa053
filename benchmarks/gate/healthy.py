"""Healthy runs of many kinds with the gate: steps withheld, and the loss that they end with.

A run that nothing is done to is the run without the gate, bit for bit. Where something is done,
the run is paired with one without the gate, over several seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tests.kit.gate_rule import make_rule

from benchmarks.result_cache import ResultCache
from benchmarks.results import Headline, table
from benchmarks.zoo import KINDS, half_of, train
from benchmarks.zoo.session import Session

SEEDS = range(5)
LAST = 300
"""Steps at the end whose mean loss is what a run ends with."""
STUDENT_T = 2.776
"""Of 95 % with four degrees of freedom."""


@dataclass(frozen=True)
class Row:
    """What was found of a kind."""

    kind: str
    steps: int
    discarded: int
    scaled: int
    most_discarded: int
    """In one run."""
    bare: float
    """Mean loss at the end without the gate; NaN if no run needed a pair."""
    difference: float
    """Mean loss at the end with the gate minus without it."""
    interval: float
    """Half of the 95 % interval of the difference."""

    @property
    def is_worse(self) -> bool:
        """Whether the gate makes the kind worse by more than noise."""
        return self.difference > self.interval

    def cells(self) -> list[object]:
        """A line of the table."""
        change = f"{self.difference:+.3g} ± {self.interval:.2g}"
        return [
            *(self.kind, half_of(self.kind), self.steps, self.discarded, self.scaled),
            *(f"{self.bare:.4g}", change, "NO" if self.is_worse else "yes"),
        ]


def measure(cache: ResultCache) -> list[Row]:
    """Train all kinds."""
    return [_row(cache, kind) for kind in KINDS]


def report(rows: Sequence[Row]) -> tuple[str, list[Headline]]:
    """The totals that the bars are about, and the kinds that the gate touched."""
    header = ("kind", "half", "steps", "discarded", "scaled", "loss", "change", "fine")
    totals = [_total(half, rows) for half in ("tune", "report")]
    touched = [row for row in rows if not math.isnan(row.bare)]
    text = (
        f"{len(rows)} kinds of small healthy runs that are unlike pretraining, trained with the "
        "gate. They are cut into halves by a hash of their names: thresholds were chosen with one "
        "half, the other only reports. Bars: 1 discard in 10,000 steps over all kinds, 10 in any "
        f"run, and a mean loss of the last {LAST} steps no higher than without the gate (95 % "
        f"interval of {len(SEEDS)} paired seeds). A run that it never touched is equal to it, bit "
        "for bit; such kinds were run with one seed.\n\n"
        + table(("half", "kinds", "steps", "discarded", "in 10,000", "most in one run"), totals)
        + f"\n\nTouched are {len(touched)} kinds:\n\n"
        + table(header, [row.cells() for row in touched])
    )
    steps, discarded = (sum(getattr(row, name) for row in rows) for name in ("steps", "discarded"))
    worse = sum(row.is_worse for row in touched)
    return text, [
        (f"steps of healthy kinds discarded, of {steps:,}", discarded, "1 in 10,000"),
        (f"kinds that end worse with the gate, of {len(rows)}", worse, 0),
    ]


def _total(half: str, rows: Sequence[Row]) -> list[object]:
    ours = [row for row in rows if half_of(row.kind) == half]
    steps, discarded = (sum(getattr(row, name) for row in ours) for name in ("steps", "discarded"))
    most = max((row.most_discarded for row in ours), default=0)
    rate = f"{1e4 * discarded / steps:.2f}" if steps else ""
    return [half, len(ours), f"{steps:,}", discarded, rate, most]


def _row(cache: ResultCache, kind: str) -> Row:
    gated = [_outcome(cache, kind, SEEDS[0], gate=True)]
    bare: list[dict[str, Any]] = []
    if gated[0]["discarded"] or gated[0]["scaled"]:
        gated += [_outcome(cache, kind, seed, gate=True) for seed in SEEDS[1:]]
        bare = [_outcome(cache, kind, seed, gate=False) for seed in SEEDS]
    pairs = zip(gated, bare, strict=False)
    changes = [ours["loss"] - theirs["loss"] for ours, theirs in pairs]
    spread = float(np.std(changes, ddof=1)) if changes else 0.0
    return Row(
        kind=kind,
        steps=sum(run["steps"] for run in gated),
        discarded=sum(run["discarded"] for run in gated),
        scaled=sum(run["scaled"] for run in gated),
        most_discarded=max(run["discarded"] for run in gated),
        bare=float(np.mean([run["loss"] for run in bare])) if bare else math.nan,
        difference=float(np.mean(changes)) if changes else 0.0,
        interval=STUDENT_T * spread / math.sqrt(max(1, len(changes))),
    )


def _outcome(cache: ResultCache, kind: str, seed: int, *, gate: bool) -> dict[str, Any]:
    name = f"{kind}, seed {seed}, {'gate' if gate else 'bare'}"
    return cache.get(name, partial(_train, kind, seed, gate=gate))


def _train(kind: str, seed: int, *, gate: bool) -> dict[str, Any]:
    session = Session(seed, make_rule() if gate else None)
    train(kind, session)
    return {
        "loss": float(np.mean([loss for loss, _ in session.stream[-LAST:]])),
        "steps": len(session.stream),
        "discarded": sum(outcome.discarded for outcome in session.outcomes),
        "scaled": sum(outcome.shrink > 1 for outcome in session.outcomes),
    }
