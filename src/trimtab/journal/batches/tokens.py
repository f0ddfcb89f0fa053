"""Token counts compared: which tokens a few sequences have more of than the run.

Scores are the log-likelihood ratio G2 of Dunning 1993 ("Accurate Methods for the Statistics of
Surprise and Coincidence"), which stays valid for rare tokens where a chi-square test does not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import FloatArray, IntArray
from trimtab.journal.batches.rows import KeptBatch

MIN_G2 = 15.13
"""A token is named from this G2 on: p < 0.0001 with one degree of freedom. Source: Rayson et al.
2004, "Extending the Cochran rule for the comparison of word frequencies between corpora"."""

BANDS = (0.5, 0.75, 0.9, 0.99, 1.0)
"""Upper ends of the frequency bands, as shares of the run's text: the most frequent tokens that
make up half of it, then those up to three quarters, and so on."""

BAND_NAMES = (
    "most frequent half of the run's text",
    "next 25 %",
    "next 15 %",
    "next 9 %",
    "rarest 1 %",
    "never seen before",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShare:
    """One token: how much of the sequences it is, and how much of the run."""

    id: int
    count: int
    share: float
    run_share: float
    """In the run before the incident; 0.0 if it was never seen."""
    log2_ratio: float
    """How many times it doubled; half a count is added on both sides, so that none is infinite."""
    g2: float
    text: str | None = None
    """The token as text, if the user allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Tokens of about the same frequency: their share here and in the run."""

    name: str
    share: float
    run_share: float


def count_tokens(arrays: Iterable[NDArray[np.integer]], size: int = 0) -> IntArray:
    flat = list(arrays)
    if len(flat) == 1:
        tokens = flat[0]
    else:
        tokens = np.concatenate(flat) if flat else np.zeros(0, dtype=np.int64)
    return np.bincount(tokens, minlength=size).astype(np.int64, copy=False)


def pad(counts: IntArray, size: int) -> IntArray:
    return counts if len(counts) >= size else np.pad(counts, (0, size - len(counts)))


def unusual_tokens(
    counts: IntArray, run: IntArray, limit: int, *, fewer: bool = False
) -> tuple[TokenShare, ...]:
    """Return the tokens that are over-represented against the run, the clearest first; or under."""
    size = max(len(counts), len(run))
    counts, run = pad(counts, size), pad(run, size)
    here, there = int(counts.sum()), int(run.sum())
    if not here or not there:
        return ()
    scores = g2(counts, run)
    over = counts * there > run * here
    chosen = np.flatnonzero((scores >= MIN_G2) & (~over if fewer else over))
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")][:limit]
    ratio = np.log2((counts + 0.5) / (here + 0.5)) - np.log2((run + 0.5) / (there + 0.5))
    return tuple(
        TokenShare(
            id=int(id),
            count=int(counts[id]),
            share=float(counts[id] / here),
            run_share=float(run[id] / there),
            log2_ratio=float(ratio[id]),
            g2=float(scores[id]),
        )
        for id in chosen
    )


def g2(counts: IntArray, run: IntArray) -> FloatArray:
    """For each token, the log-likelihood ratio of two shares against one common share."""
    here, there = counts.sum(), run.sum()
    common = (counts + run) / (here + there)
    inside = _x_log_ratio(counts, here * common) + _x_log_ratio(run, there * common)
    # The rest of the 2 x 2 table: all other tokens, here and in the run.
    others = _x_log_ratio(here - counts, here * (1 - common))
    others += _x_log_ratio(there - run, there * (1 - common))
    scores: FloatArray = np.maximum(2 * (inside + others), 0.0)
    return scores


def _x_log_ratio(observed: IntArray, expected: FloatArray) -> FloatArray:
    result = np.zeros(len(observed))
    known = (observed > 0) & (expected > 0)
    result[known] = observed[known] * np.log(observed[known] / expected[known])
    return result


def bands(counts: IntArray, run: IntArray) -> tuple[Band, ...]:
    """Compute a small histogram: shares by how frequent a token is in the run."""
    size = max(len(counts), len(run))
    counts, run = pad(counts, size), pad(run, size)
    if not counts.sum() or not run.sum():
        return ()
    order = np.argsort(-run, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(run[order])[:-1])) / run.sum()
    band = np.searchsorted(BANDS, before, side="right")
    band[run[order] == 0] = len(BANDS)
    here = np.bincount(band, weights=counts[order], minlength=len(BAND_NAMES)) / counts.sum()
    there = np.bincount(band, weights=run[order], minlength=len(BAND_NAMES)) / run.sum()
    return tuple(
        Band(name=name, share=float(share), run_share=float(run_share))
        for name, share, run_share in zip(BAND_NAMES, here, there, strict=True)
    )


def divergence(one: IntArray, other: IntArray) -> FloatArray:
    """Return the Jensen-Shannon divergence along the last axis: 0 bits if alike, 1 if disjoint."""
    p = one / one.sum(axis=-1, keepdims=True)
    q = other / other.sum(axis=-1, keepdims=True)
    return _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2


def _entropy(shares: FloatArray) -> FloatArray:
    # The smallest double stands for 0: a share of 0 has no entropy, and log 0 is an error.
    entropy: FloatArray = -(shares * np.log2(np.maximum(shares, 5e-324))).sum(axis=-1)
    return entropy


MIN_SIDE = 16
"""Batches on either side of a split: fewer are bad batches, not a different mix."""

MAX_KINDS = 512
"""The most frequent tokens are compared one by one, all others as one."""

SHUFFLES, SIGMAS = 24, 12.0
"""Random orders, and sigmas above their mean from which a difference is a shift. Source: tune seeds
of the lab, where shifts reach 49 and more, a few repeats of one batch 11, and other incidents 7."""

_STRIDE = 4
"""In a random order, splits are tried at every fourth batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShift:
    """The tokens of many batches differ from those before."""

    step: int
    data_position: int
    """Where it begins."""
    num_batches: int
    """Batches from there on that were looked at."""
    divergence: float
    """Jensen-Shannon divergence of these batches from those before, in bits."""
    usual: float
    """The same by chance: of these batches in a random order."""
    more: tuple[TokenShare, ...]
    fewer: tuple[TokenShare, ...]
    bands: tuple[Band, ...]
    """These batches as a histogram over how frequent a token was before."""


def find_shift(batches: Sequence[KeptBatch], run: IntArray, max_tokens: int) -> TokenShift | None:
    """Find a shift of the mix among these batches; `run` has the counts of the run before."""
    batches = [batch for batch in batches if any((rows >= 0).any() for rows in batch.parts)]
    if len(batches) < 2 * MIN_SIDE:
        return None
    table = _table(batches, len(run))
    random = np.random.default_rng(0)
    split, score = _best_split(table, 1)
    orders = [random.permutation(len(table)) for _ in range(SHUFFLES)]
    if score < _limit([_best_split(table[order], _STRIDE)[1] for order in orders]):
        return None
    # A few bad batches in the middle are no shift: the later half must differ as well.
    later = split + (len(table) - split) // 2
    chance = [_difference(table[order], split, later) for order in orders]
    if _difference(table, split, later) < _limit(chance):
        return None
    size = len(run)
    before = run + count_tokens([batch.tokens() for batch in batches[:split]], size)
    after = count_tokens([batch.tokens() for batch in batches[split:]], size)
    return TokenShift(
        step=batches[split].step,
        data_position=batches[split].data_position,
        num_batches=len(batches) - split,
        divergence=_difference(table, split, split),
        usual=float(np.mean([_difference(table[order], split, split) for order in orders])),
        more=unusual_tokens(after, before, max_tokens),
        fewer=unusual_tokens(after, before, max_tokens, fewer=True),
        bands=bands(after, before),
    )


def _table(batches: Sequence[KeptBatch], size: int) -> IntArray:
    """Return a row of token counts for each batch; rare tokens share the last column."""
    tokens = [batch.tokens() for batch in batches]
    total = count_tokens(tokens, size)
    column = np.full(size, min(MAX_KINDS, size))
    frequent = np.argsort(-total, kind="stable")[:MAX_KINDS]
    column[frequent] = np.arange(len(frequent))
    return np.stack([count_tokens([column[ids]], len(frequent) + 1) for ids in tokens])


def _best_split(table: IntArray, stride: int) -> tuple[int, float]:
    """Return where the batches before and after differ most, and by how much."""
    splits = np.arange(MIN_SIDE, len(table) - MIN_SIDE + 1, stride)
    sums = np.cumsum(table, axis=0)
    before = sums[splits - 1]
    scores = divergence(before, sums[-1] - before) * splits * (len(table) - splits)
    best = int(np.argmax(scores))
    return int(splits[best]), float(scores[best])


def _difference(table: IntArray, split: int, later: int) -> float:
    return float(divergence(table[:split].sum(axis=0), table[later:].sum(axis=0)))


def _limit(chance: list[float]) -> float:
    """Return the divergence that chance alone does not reach."""
    values: FloatArray = np.array(chance)
    return float(values.mean() + SIGMAS * max(values.std(), 0.02 * values.mean()))
