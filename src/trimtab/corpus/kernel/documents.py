"""The documents of a stream of tokens, piece by piece: length and hash of each."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.corpus.kernel.counts import Tokens
from trimtab.corpus.options import MAX_DOCUMENT

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
        """A document begins at this place of the file."""
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
        """The document ends here."""
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
