"""Short phrases that follow themselves over and over.

A phrase of p tokens that occurs n times in a row is a run of (n - 1) p places at which a token
equals the one p places before. Every run of that length contains four samples in a row of a coarse
grid, so only places where four samples are equal are looked at closely.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.corpus.kernel.counts import Tokens
from trimtab.corpus.options import MAX_PERIOD, REPEATS

_SAMPLES = 4
"""Samples within the shortest run. More of them would read more and skip more."""

CONTEXT = 2**10
"""Tokens before and after a piece that decide whether its own tokens are repeated: more than the
shortest run, and the same for every piece, so that results do not depend on how a file is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A phrase that is repeated: the tokens from `start` to `stop`."""

    start: int
    stop: int
    period: int
    """Tokens of the phrase."""


def find_runs(tokens: Tokens, *, repeats: int = REPEATS, max_period: int = MAX_PERIOD) -> list[Run]:
    """The repeated phrases in order of their periods; one of period 1 is not one of period 2."""
    runs: list[Run] = []
    covered: NDArray[np.bool_] | None = None
    for period in range(1, max_period + 1):
        for start, stop in _equal_runs(tokens, period, (repeats - 1) * period):
            if covered is None:
                covered = np.zeros(len(tokens), dtype=np.bool_)
            run = Run(start=start - period, stop=stop, period=period)
            if not covered[run.start : run.stop].all():
                runs.append(run)
                covered[run.start : run.stop] = True
    return runs


def repeated_tokens(tokens: Tokens, runs: list[Run]) -> NDArray[np.bool_]:
    """Whether each token is part of a run."""
    mask = np.zeros(len(tokens), dtype=np.bool_)
    for run in runs:
        mask[run.start : run.stop] = True
    return mask


def _equal_runs(tokens: Tokens, period: int, shortest: int) -> Iterator[tuple[int, int]]:
    """The longest stretches in which each token equals the one a period before."""
    size = len(tokens) - period
    if size < shortest:
        return
    stride = shortest // _SAMPLES
    if not stride:
        yield from _stretches(tokens[period:] == tokens[:-period], shortest, period)
        return
    samples = tokens[period::stride] == tokens[:-period:stride]
    candidates = samples[: len(samples) - _SAMPLES + 1].copy()
    for offset in range(1, _SAMPLES):
        candidates &= samples[offset : offset + len(candidates)]
    # Beyond the first and last sample of a group one differs, so no run reaches further.
    for first, last in _stretches(candidates, 1, 0):
        low = max(first * stride - stride, 0)
        high = min((last + _SAMPLES - 1) * stride + 1, size)
        equal = tokens[low + period : high + period] == tokens[low:high]
        yield from _stretches(equal, shortest, low + period)


def _stretches(equal: NDArray[np.bool_], shortest: int, offset: int) -> Iterator[tuple[int, int]]:
    """Where at least this many values in a row are true: the first place, and the one after."""
    edges = np.flatnonzero(np.diff(equal.astype(np.int8), prepend=0, append=0))
    for start, stop in edges.reshape(-1, 2).tolist():
        if stop - start >= shortest:
            yield start + offset, stop + offset
