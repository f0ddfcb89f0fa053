"""Order: what is to be done at the next boundary between two steps."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A rollback, or the end of holding options."""

    to: int | None
    """Return to the newest snapshot at or before this step; None only ends holding."""
    skip: tuple[int, ...] = ()
    """Data positions that are passed over from then on."""
    hold: tuple[str, ...] = ()
    """Options of optimizers that stay as they were at the snapshot."""
    release: tuple[str, ...] = ()
    """Options that are not held any more."""
    reason: str = ""


def to_bytes(orders: Iterable[Order]) -> bytes:
    """Orders as the other ranks receive them."""
    return json.dumps([dataclasses.asdict(order) for order in orders]).encode()


def from_bytes(text: bytes) -> list[Order]:
    """What the first rank has sent."""
    orders: list[dict[str, Any]] = json.loads(text)
    for fields in orders:
        fields |= {name: tuple(v) for name, v in fields.items() if isinstance(v, list)}
    return [Order(**fields) for fields in orders]


def as_ranges(positions: Iterable[int]) -> list[list[int]]:
    """Positions as ranges [first, last], in order."""
    ordered = sorted(set(positions))
    starts = [at for at, (a, b) in enumerate(pairwise(ordered), 1) if b != a + 1]
    edges = [0, *starts, len(ordered)] if ordered else []
    return [[ordered[first], ordered[last - 1]] for first, last in pairwise(edges)]
