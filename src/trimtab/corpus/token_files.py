"""Open files of token ids: raw .bin (nanoGPT), .bin with a header (llm.c), .npy, Megatron.

Sizes and headers are checked before use; .npy is read without pickle. `open_file` finds the format
of a path, including those with rows of text (`row_files.py`).
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.core.errors import CorpusError
from trimtab.corpus.counting import Tokens
from trimtab.corpus.options import ScanOptions
from trimtab.corpus.row_files import ArrowFile, JsonLinesFile, ParquetFile

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
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            yield FlatReader(self, descriptor)
        finally:
            os.close(descriptor)

    def document_ends(self, tokens: Tokens, at: int) -> Sequence[int]:
        """Return the offsets in the file just after each document that ends in these tokens.

        `at` is the offset of the first token.
        """
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
        """Read a range, cut to the file; the tokens are valid until the next call."""
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
    """Open a raw file, or one with the header of llm.c."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = np.frombuffer(file.read(12).ljust(12, b"\0"), dtype="<i4")
    # The magic number decides: nanoGPT's files have the same suffix and no header.
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
    """Open a numpy array of one or two dimensions, never a pickle."""
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


_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<QBQQ")
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""The codes of integer types; Megatron-LM also has codes for floats, which are no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronFile(FlatFile):
    """Token ids whose documents are in an index."""

    index: Path
    sequences: int
    documents: int

    @property
    def has_documents(self) -> bool:
        return True

    def document_ends(self, tokens: Tokens, at: int) -> Sequence[int]:
        # The last document of the index begins none: it is where the one before ends.
        starts, firsts = self._arrays()

        def begins(document: int) -> int:
            return int(self._places(starts, firsts[document : document + 1])[0])

        documents = range(len(firsts))
        low, high = (bisect_right(documents, place, key=begins) for place in (at, at + len(tokens)))
        ends: list[int] = np.unique(self._places(starts, firsts[low:high])).tolist()
        return ends

    def _places(self, starts: NDArray[np.int64], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(sequences) and not 0 <= sequences.min() <= sequences.max() <= self.sequences:
            raise CorpusError(f"{self.index} names a sequence beyond its {self.sequences}: damaged")
        offsets = starts[np.minimum(sequences, self.sequences - 1)]
        places = offsets // np.dtype(self.dtype).itemsize
        return np.where(sequences == self.sequences, self.size, places)

    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets of the sequences, and the first sequence of each document."""
        offset = len(_MAGIC) + _HEADER.size + 4 * self.sequences
        starts = np.memmap(self.index, np.int64, "r", offset, (self.sequences,))
        end = offset + 8 * self.sequences
        return starts, np.memmap(self.index, np.int64, "r", end, (self.documents,))


def open_megatron(path: Path, index: Path) -> MegatronFile:
    """Check the index and the sizes of both files."""
    size, index_size = path.stat().st_size, index.stat().st_size
    with index.open("rb") as file:
        magic, header = file.read(len(_MAGIC)), file.read(_HEADER.size)
    if magic != _MAGIC or len(header) < _HEADER.size:
        raise CorpusError(f"{index} is not an index of Megatron-LM")
    version, code, sequences, documents = _HEADER.unpack(header)
    needed = len(_MAGIC) + _HEADER.size + 12 * sequences + 8 * documents
    if version != 1 or code not in _DTYPES or not sequences or not documents:
        raise CorpusError(f"{index} has version {version}, dtype {code}: only version 1 is known")
    if needed > index_size:
        raise CorpusError(f"{index} needs {needed} bytes and has {index_size}: cut or damaged")
    width = np.dtype(_DTYPES[code]).itemsize
    found = MegatronFile(
        path=path,
        kind="megatron",
        dtype=_DTYPES[code],
        offset=0,
        size=size // width,
        index=index,
        sequences=sequences,
        documents=documents,
    )
    lengths = np.memmap(index, np.int32, "r", len(_MAGIC) + _HEADER.size, (sequences,))
    claimed = int(lengths.sum(dtype=np.int64))
    if size % width or claimed * width != size:
        raise CorpusError(f"{index} has {claimed} tokens and {path} has {size // width}: cut?")
    return found


TokenFile = FlatFile | ParquetFile | ArrowFile | JsonLinesFile

SUFFIXES = (".bin", ".npy", ".parquet", ".arrow", ".jsonl")


def find_files(paths: Iterable[Path]) -> list[tuple[Path, str]]:
    """Return the token files at these paths and in these folders, each with its source.

    The source of a file in a folder is the subfolder, or the folder itself; that of a file is its
    name without the suffix.
    """
    found: dict[Path, str] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if not files:
                raise CorpusError(
                    f"{path} holds no {', '.join(SUFFIXES)}; give files of tokens or text"
                )
            for file in files:
                inner = file.relative_to(path).parts
                found.setdefault(file, inner[0] if len(inner) > 1 else path.resolve().name)
        elif path.is_file():
            found.setdefault(path, path.stem)
        else:
            raise CorpusError(f"{path} does not exist; check the path")
    return list(found.items())


def open_file(path: Path, options: ScanOptions) -> TokenFile:
    """Open a file by its suffix, and check its header and size."""
    try:
        match path.suffix:
            case ".bin":
                index = path.with_suffix(".idx")
                if index.exists():
                    return open_megatron(path, index)
                return open_bin(path, options.dtype, options.separator)
            case ".npy":
                return open_npy(path, options.separator)
            case ".parquet":
                return ParquetFile(path=path)
            case ".arrow":
                return ArrowFile(path=path)
            case ".jsonl":
                return JsonLinesFile(path=path)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error}") from error
    raise CorpusError(f"{path} is none of {', '.join(SUFFIXES)}; give files of these kinds")
