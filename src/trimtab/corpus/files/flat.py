"""Flat files: token ids one after the other, from an offset to the end."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.core.errors import CorpusError
from trimtab.corpus.kernel.counts import Tokens

UNIT = 2**24
"""Tokens of a unit of work: a second or less, and small beside a shard."""

_LLMC_HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Magic number and version of llm.c's token files."""

_LLMC_HEADER_BYTES = 256 * 4
_MAX_NPY_HEADER = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatFile:
    """Token ids in a file."""

    path: Path
    kind: str
    dtype: str
    offset: int
    """Bytes before the first token."""
    size: int
    """Number of tokens."""
    separator: int | None = None
    """The token that ends a document."""
    row_length: int | None = None
    """Tokens of a row, if each row is a document."""

    @property
    def has_documents(self) -> bool:
        """Whether it is known where documents end."""
        return self.separator is not None or self.row_length is not None

    def units(self) -> list[tuple[int, int, int]]:
        """First token, the one after the last, and bytes of each unit of work."""
        width = np.dtype(self.dtype).itemsize
        cuts = [*range(0, self.size, UNIT), self.size]
        return [(a, b, (b - a) * width) for a, b in pairwise(cuts) if b > a]

    @contextmanager
    def opened(self) -> Iterator["FlatReader"]:
        """Open the file to read pieces of it."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            yield FlatReader(self, descriptor)
        finally:
            os.close(descriptor)

    def document_ends(self, tokens: Tokens, at: int) -> Sequence[int]:
        """The places after the ends of documents in these tokens, which begin at place `at`."""
        if self.separator is not None:
            ends: list[int] = (np.flatnonzero(tokens == self.separator) + at + 1).tolist()
            return ends
        if self.row_length is not None:
            first = (at // self.row_length + 1) * self.row_length
            return range(first, at + len(tokens) + 1, self.row_length)
        return ()


class FlatReader:
    """Reads pieces of a flat file into one buffer.

    The file is read, not mapped: a mapped file that is cut while it is read kills the process.
    """

    def __init__(self, file: FlatFile, descriptor: int) -> None:
        self._file = file
        self._descriptor = descriptor
        self._dtype = np.dtype(file.dtype)
        self._buffer = np.empty(0, dtype=np.uint8)

    def read(self, first: int, last: int) -> Tokens:
        """The tokens of a range, until the next call; the range is cut to the file."""
        first, last = max(first, 0), min(last, self._file.size)
        length = max(last - first, 0) * self._dtype.itemsize
        if len(self._buffer) < length:
            self._buffer = np.empty(length, dtype=np.uint8)
        view, done = self._buffer[:length].data, 0
        start = self._file.offset + first * self._dtype.itemsize
        while done < length:
            got = os.preadv(self._descriptor, [view[done:]], start + done)
            if not got:
                raise CorpusError(
                    f"{self._file.path} ends at byte {start + done}; it had {length - done} more "
                    "when the scan began. Do not write to files while they are scanned"
                )
            done += got
        tokens: NDArray[Any] = self._buffer[:length].view(self._dtype)
        return tokens


def open_bin(path: Path, dtype: str, separator: int | None) -> FlatFile:
    """A raw file, or one with the header of llm.c."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = np.frombuffer(file.read(12).ljust(12, b"\0"), dtype="<i4")
    stored = _LLMC_HEADERS.get((int(head[0]), int(head[1])))
    if stored is None:
        width = np.dtype(dtype).itemsize
        if size % width:
            raise CorpusError(
                f"{path} has {size} bytes, which is no multiple of {width} ({dtype}); "
                "choose a different --dtype"
            )
        return FlatFile(
            path=path, kind="bin", dtype=dtype, offset=0, size=size // width, separator=separator
        )
    claimed = int(head[2])
    held = (size - _LLMC_HEADER_BYTES) // np.dtype(stored).itemsize
    if claimed < 0 or claimed > held:
        raise CorpusError(f"{path} claims {claimed} tokens and has {held}: it is cut or damaged")
    return FlatFile(
        path=path,
        kind="bin (llm.c)",
        dtype=stored,
        offset=_LLMC_HEADER_BYTES,
        size=claimed,
        separator=separator,
    )


def open_npy(path: Path, separator: int | None) -> FlatFile:
    """A numpy array of one or two dimensions, never a pickle."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, by_columns, dtype = read(file, max_header_size=_MAX_NPY_HEADER)
        except Exception as error:  # numpy's tokenizer raises errors of its own on a damaged header
            raise CorpusError(f"{path} is not a readable .npy file: {error}") from error
        offset = file.tell()
    if dtype.kind not in "iu" or not dtype.isnative or len(shape) not in (1, 2) or by_columns:
        raise CorpusError(
            f"{path} holds {dtype} of shape {shape}; token ids are native integers in one or two "
            "dimensions, row by row"
        )
    size = int(np.prod([int(length) for length in shape], dtype=object))
    held = (path.stat().st_size - offset) // dtype.itemsize
    if size < 0 or size > held:
        raise CorpusError(f"{path} claims {size} tokens and has {held}: it is cut or damaged")
    return FlatFile(
        path=path,
        kind="npy",
        dtype=dtype.name,
        offset=offset,
        size=size,
        separator=separator if len(shape) == 1 else None,
        row_length=int(shape[1]) or None if len(shape) == 2 else None,
    )
