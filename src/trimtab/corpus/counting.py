"""Count tokens, hash documents and find repeated phrases, on numpy arrays.

A phrase of p tokens that occurs n times in a row is a run of (n - 1) p places at which a token
equals the one p places before. Every run of that length contains four samples in a row of a coarse
grid, so only places where four samples are equal are compared in full.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.corpus.options import MAX_DOCUMENT, MAX_PERIOD, MAX_VOCABULARY, REPEATS

Tokens = NDArray[np.integer]
Counts = NDArray[np.int64]

CHUNK = 2**18
"""Tokens that are counted at once. `np.bincount` needs them as int64, which should fit into the
cache: 1.2 times as fast as with 2**22 (2 MB of L2 cache per core)."""

PIECE = 2**15
"""Tokens that are checked and copied at once, while they are in the cache."""


class TokenCounter:
    """Counts tokens; an id at or above the limit is counted as out of range.

    Tokens are collected in one int64 buffer and counted when it is full, so that `np.bincount`
    neither makes a copy of its own nor is called for a few tokens.
    """

    def __init__(self, limit: int = MAX_VOCABULARY) -> None:
        self.limit = limit
        self.out_of_range = 0
        self._counts: Counts = np.zeros(0, dtype=np.int64)
        self._buffer: NDArray[np.int64] = np.empty(CHUNK, dtype=np.int64)
        self._waiting = 0
        """Tokens in the buffer that are not counted yet."""

    @property
    def counts(self) -> Counts:
        self._count()
        return self._counts

    def update(self, tokens: Tokens) -> None:
        """Count these tokens."""
        # All ids of a narrow type may fit; then nothing needs to be looked at.
        lowest, highest = _range(tokens.dtype)
        can_be_high, can_be_negative = highest >= self.limit, lowest < 0
        for start in range(0, len(tokens), PIECE):
            piece = tokens[start : start + PIECE]
            is_high = can_be_high and np.maximum.reduce(piece) >= self.limit
            if is_high or (can_be_negative and piece.min() < 0):
                is_valid = (piece >= 0) & (piece < self.limit)
                self.out_of_range += int(np.count_nonzero(~is_valid))
                piece = piece[is_valid]
            if self._waiting + len(piece) > CHUNK:
                self._count()
            self._buffer[self._waiting : self._waiting + len(piece)] = piece
            self._waiting += len(piece)

    def _count(self) -> None:
        # At least as long as the counts are: they can be added without a copy.
        waiting = self._buffer[: self._waiting]
        counts = np.bincount(waiting, minlength=len(self._counts))
        if len(counts) > len(self._counts):
            counts[: len(self._counts)] += self._counts
            self._counts = counts
        else:
            self._counts += counts
        self._waiting = 0


@functools.cache
def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    kind = np.iinfo(dtype)
    return int(kind.min), int(kind.max)


def add_counts(one: Counts, other: Counts) -> Counts:
    """Add up counts that may have different lengths."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    total = long.copy()
    total[: len(short)] += short
    return total


def trim(counts: Counts) -> Counts:
    """Counts without the zeros at the end, so that they do not depend on how they were made."""
    used = np.flatnonzero(counts)
    return counts[: used[-1] + 1] if len(used) else counts[:0]


_HASH_BYTES = 8
"""Two of 10**9 different documents have the same hash with a probability of 3 %."""


class DocumentReader:
    """Cuts a stream of tokens into documents; only their lengths and hashes are kept.

    Of a document longer than `MAX_DOCUMENT`, the first tokens are hashed and counted.
    """

    def __init__(self, *, ends_with_separator: bool) -> None:
        self._separator = int(ends_with_separator)
        self._hash = hashlib.sha1(usedforsecurity=False)
        self._length = 0
        self.start: int | None = None
        """Where the current document begins; None if it is the end of one that began before."""
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._digests: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """Whether a document has begun and needs more tokens."""
        return self.start is not None and self._length < MAX_DOCUMENT

    def begin(self, at: int) -> None:
        self._hash = hashlib.sha1(usedforsecurity=False)
        self._length = 0
        self.start = at

    def update(self, tokens: Tokens, at: int, ends: Sequence[int]) -> None:
        """Read tokens from place `at` on; a document ends before each of the places in `ends`.

        Each end begins the next document, also the last one: `begin` is needed only once.
        """
        data = np.ascontiguousarray(tokens).data.cast("B")
        width = tokens.dtype.itemsize
        done = at
        for end in ends:
            if self.start is not None:
                self._add(data, done - at, end - self._separator - at, width)
                self.close()
            self.begin(end)
            done = end
        if self.start is not None:
            self._add(data, done - at, len(tokens), width)

    def close(self) -> None:
        if self.start is not None:
            self._starts.append(self.start)
            self._lengths.append(self._length)
            self._digests.append(self._hash.digest()[:_HASH_BYTES])
        self.start = None

    def _add(self, data: memoryview, first: int, last: int, width: int) -> None:
        last = min(last, first + MAX_DOCUMENT - self._length)
        if last > first:
            self._hash.update(data[first * width : last * width])
            self._length += last - first

    def pop(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """Places, lengths and hashes of the documents that ended since the last call."""
        starts = np.array(self._starts, dtype=np.int64)
        lengths = np.array(self._lengths, dtype=np.int64)
        hashes = np.frombuffer(b"".join(self._digests), dtype="<u8").astype(np.uint64)
        self._starts, self._lengths, self._digests = [], [], []
        return starts, lengths, hashes


_SAMPLES = 4
"""Samples within the shortest run. More of them would read more and skip more."""

CONTEXT = 2**10
"""Tokens before and after a piece that decide whether its own tokens are repeated: more than the
shortest run, and the same for every piece, so that results do not depend on how a file is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseRun:
    """A phrase that is repeated: the tokens from `start` to `stop`."""

    start: int
    stop: int
    period: int
    """Tokens of the phrase."""


def find_phrase_runs(
    tokens: Tokens, *, repeats: int = REPEATS, max_period: int = MAX_PERIOD
) -> list[PhraseRun]:
    """Find repeated phrases, by period; one of period 1 is not reported as period 2 again."""
    runs: list[PhraseRun] = []
    covered: NDArray[np.bool_] | None = None
    for period in range(1, max_period + 1):
        for start, stop in _equal_runs(tokens, period, (repeats - 1) * period):
            if covered is None:
                covered = np.zeros(len(tokens), dtype=np.bool_)
            run = PhraseRun(start=start - period, stop=stop, period=period)
            if not covered[run.start : run.stop].all():
                runs.append(run)
                covered[run.start : run.stop] = True
    return runs


def repeated_tokens(tokens: Tokens, runs: list[PhraseRun]) -> NDArray[np.bool_]:
    mask = np.zeros(len(tokens), dtype=np.bool_)
    for run in runs:
        mask[run.start : run.stop] = True
    return mask


def _equal_runs(tokens: Tokens, period: int, shortest: int) -> Iterator[tuple[int, int]]:
    """Yield the longest stretches in which each token equals the one a period before."""
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
    """Yield the start and end of each stretch with at least this many true values in a row."""
    edges = np.flatnonzero(np.diff(equal.astype(np.int8), prepend=0, append=0))
    for start, stop in edges.reshape(-1, 2).tolist():
        if stop - start >= shortest:
            yield start + offset, stop + offset
