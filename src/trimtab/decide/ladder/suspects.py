"""Who may be to blame: a data source that came with the trouble, or a rank that differs."""

import math
from collections import Counter
from collections.abc import Sequence

MIN_BATCHES = 4
"""Batches since the onset before a source is suspected: one bad batch is not a bad source."""

MIN_RISE, MAX_BEFORE = 0.25, 0.25
"""How much more often a source comes since the onset, as a share of the batches, and how often at
most it came before: what was common and did no harm is not to blame. Chosen: a source of a usual
mix varies by less than this over 8 batches only if it is common."""

BY_CHANCE = 1e-3
"""The probability that this many odd steps name one rank by chance. Chosen: a relaunch costs a few
steps, and looking at ranks begins only where odd steps recur."""


def suspect_source(before: Sequence[str | None], since: Sequence[str | None]) -> str | None:
    """The source that comes since the onset and hardly came before; None if there is none.

    Both have the source of each batch, None where a batch does not name one.
    """
    if len(since) < MIN_BATCHES or not before:
        return None
    known = Counter(source for source in since if source is not None)
    earlier = Counter(before)

    def rise(source: str) -> float:
        return known[source] / len(since) - earlier[source] / len(before)

    most = max(known, key=rise, default=None)
    if most is None or earlier[most] > MAX_BEFORE * len(before) or rise(most) < MIN_RISE:
        return None
    return most


def suspect_rank(named: Sequence[int], world: int) -> int | None:
    """The rank that odd steps name more often than chance would; None if there is none.

    `named` has the rank that each odd step names: the one whose loss or gradient was largest.
    """
    if not named or world < 2:
        return None
    rank, times = Counter(named).most_common(1)[0]
    total, share = len(named), 1 / world
    at_least = sum(
        math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(times, total + 1)
    )
    return rank if world * at_least <= BY_CHANCE else None
