"""Order: what is to be done at the next boundary between two steps."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trimtab.probes.passes import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStep:
    """A step whose batches are run forward again, to compare losses."""

    step: int
    trained: float
    """Its loss when it was trained on, over all ranks."""
    positions: tuple[int, ...]
    """The data positions of its batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A rollback, a probe, an experiment, holding options or its end, or the end of the run."""

    to: int | None
    """Return to the newest snapshot at or before this step; None stays."""
    skip: tuple[int, ...] = ()
    """Data positions that are passed over from then on."""
    quarantine: str | None = None
    """A data source that is passed over from then on."""
    hold: tuple[str, ...] = ()
    """Options of optimizers that stay as they were at the snapshot."""
    release: tuple[str, ...] = ()
    """Options that are not held any more."""
    hold_at: int | None = None
    """Hold options as at the newest snapshot at or before this step, without returning to it."""
    lr_factor: float | None = None
    """Multiply the learning rate by this for some time after returning."""
    probe: tuple[ProbeStep, ...] = ()
    watch_ranks: bool | None = None
    """Begin or end to measure each rank's own gradients."""
    experiment: Question | None = None
    """Steps are done again to find out about an incident."""
    exit_code: int | None = None
    """End the run with this code."""
    reason: str = ""


def to_bytes(orders: Iterable[Order]) -> bytes:
    """Orders as the other ranks receive them."""
    return json.dumps([dataclasses.asdict(order) for order in orders]).encode()


def from_bytes(text: bytes) -> list[Order]:
    """What the first rank has sent."""
    orders: list[dict[str, Any]] = json.loads(text)
    for fields in orders:
        fields |= {name: tuple(v) for name, v in fields.items() if isinstance(v, list)}
        fields["probe"] = tuple(
            ProbeStep(**{**part, "positions": tuple(part["positions"])}) for part in fields["probe"]
        )
        if fields["experiment"] is not None:
            fields["experiment"] = Question.from_dict(fields["experiment"])
    return [Order(**fields) for fields in orders]


def as_ranges(positions: Iterable[int]) -> list[list[int]]:
    """Positions as ranges [first, last], in order."""
    ordered = sorted(set(positions))
    starts = [at for at, (a, b) in enumerate(pairwise(ordered), 1) if b != a + 1]
    edges = [0, *starts, len(ordered)] if ordered else []
    return [[ordered[first], ordered[last - 1]] for first, last in pairwise(edges)]
