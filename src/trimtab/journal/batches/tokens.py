"""Token counts compared: which tokens a few sequences have more of than the run.

Scores are the log-likelihood ratio G2 of Dunning 1993 ("Accurate Methods for the Statistics of
Surprise and Coincidence"), which stays valid for rare tokens where a chi-square test does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import FloatArray, IntArray

MIN_G2 = 15.13
"""A token is named from this G2 on: p < 0.0001 with one degree of freedom. Source: Rayson et al.
2004, "Extending the Cochran rule for the comparison of word frequencies between corpora"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShare:
    """One token: how much of the sequences it is, and how much of the run."""

    id: int
    count: int
    share: float
    run_share: float
    """In the run before the incident; 0.0 if it was never seen."""
    g2: float
    text: str | None = None
    """The token as text, if the user allows it."""


def count_tokens(arrays: Iterable[NDArray[np.integer]], size: int = 0) -> IntArray:
    flat = list(arrays)
    if len(flat) == 1:
        tokens = flat[0]
    else:
        tokens = np.concatenate(flat) if flat else np.zeros(0, dtype=np.int64)
    return np.bincount(tokens, minlength=size).astype(np.int64, copy=False)


def pad(counts: IntArray, size: int) -> IntArray:
    return counts if len(counts) >= size else np.pad(counts, (0, size - len(counts)))


def unusual_tokens(counts: IntArray, run: IntArray, limit: int) -> tuple[TokenShare, ...]:
    """Return the tokens that are over-represented against the run, the clearest first."""
    size = max(len(counts), len(run))
    counts, run = pad(counts, size), pad(run, size)
    here, there = int(counts.sum()), int(run.sum())
    if not here or not there:
        return ()
    scores = g2(counts, run)
    over = counts * there > run * here
    chosen = np.flatnonzero((scores >= MIN_G2) & over)
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")][:limit]
    return tuple(
        TokenShare(
            id=int(id),
            count=int(counts[id]),
            share=float(counts[id] / here),
            run_share=float(run[id] / there),
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
