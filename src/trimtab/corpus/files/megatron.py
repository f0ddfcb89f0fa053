"""Megatron-LM's indexed datasets: token ids in `.bin`, lengths and documents in `.idx`.

MMIDIDX\\0\\0, version u64, dtype u8, sequences u64, documents u64
lengths i32 x sequences, offsets i64 x sequences, first sequence of each document i64 x documents
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.core.errors import CorpusError
from trimtab.corpus.files.flat import FlatFile
from trimtab.corpus.kernel.counts import Tokens

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
        """The index has them."""
        return True

    def document_ends(self, tokens: Tokens, at: int) -> Sequence[int]:
        """The places after the ends of documents, from the index."""
        starts, firsts = self._arrays()
        low, high = (self._search(starts, firsts, place) for place in (at, at + len(tokens)))
        ends: list[int] = np.unique(self._places(starts, firsts[low:high])).tolist()
        return ends

    def _search(self, starts: NDArray[np.int64], firsts: NDArray[np.int64], place: int) -> int:
        """The number of documents that begin at this place or before.

        The last entry begins none: it is where the last document ends.
        """
        low, high = 0, len(firsts)
        while low < high:
            middle = (low + high) // 2
            if self._places(starts, firsts[middle : middle + 1])[0] <= place:
                low = middle + 1
            else:
                high = middle
        return low

    def _places(self, starts: NDArray[np.int64], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places at which sequences begin."""
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
