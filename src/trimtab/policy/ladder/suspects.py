"""Who may be to blame: a data source that came with the trouble, or a rank that differs."""

from collections import Counter
from collections.abc import Sequence

MIN_BATCHES = 4
"""Batches since the onset before a source is suspected: one bad batch is not a bad source."""

MIN_RISE, MAX_BEFORE = 0.25, 0.25
"""How much more often a source comes since the onset, as a share of the batches, and how often at
most it came before: what was common and did no harm is not to blame. Chosen: a source of a usual
mix varies by less than this over 8 batches only if it is common."""

MIN_TIMES = 4
"""Odd steps that must name the same rank. Source: with 2 ranks, 4 agree by chance once in 8 times,
so all steps since the onset count, and each must be odd by itself; with 8 ranks once in 512."""


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


def suspect_rank(named: Sequence[int]) -> int | None:
    """The rank that every odd step names; None if they differ or are few."""
    return named[0] if len(named) >= MIN_TIMES and len(set(named)) == 1 else None
