"""TFRecord files: [length u64][its checksum][payload][its checksum], again and again.

No length is believed before it is checked against its checksum and against the file. After damage
the next offset with a sound length is searched for, so that one bad byte costs one record.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trimtab.core.block import BoolArray, IntArray
from trimtab.readers.log_file import Progress

CHUNK_BYTES = 1 << 20
"""Bytes read at once: some 20,000 scalars."""

RECORD_BYTES = 1 << 26
"""A longer record is passed over: it holds pictures or a graph. Its memory would be ours."""

CHECKED_BYTES = 1 << 12
"""Payloads up to this length are checked against their checksum: scalars take some 50 bytes."""

_HEADER = 12
_FOOTER = 4
_length = struct.Struct("<Q").unpack_from

Bytes = NDArray[np.uint8]
Checksums = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = np.uint32(0xA282EAD8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Some consecutive records, as they lie in a buffer."""

    data: bytes
    starts: list[int]
    ends: list[int]


class RecordFile:
    """The records of one file, some thousands at a time."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self.num_bad = 0
        """Records whose payload is not what was written."""
        self.num_gaps = 0
        """Places where no record could be found for a while."""
        self.num_long = 0
        """Records that are too long to be examined."""
        self.is_cut = False
        """Whether the last record is not complete."""

    def records(self) -> Iterator[Records]:
        """Yield the sound records; what was not sound is counted."""
        with self._path.open("rb") as file:
            # What is written from now on is left to the next reading.
            size = os.fstat(file.fileno()).st_size
            data, wanted, lost = b"", CHUNK_BYTES, False
            while block := file.read(min(wanted, size - file.tell())):
                data += block
                framing = _Framing(data, left=size - file.tell(), lost=lost)
                yield self._checked(data, framing)
                data, lost = data[framing.end :], framing.lost
                self.num_gaps += framing.num_gaps
                self.is_cut |= framing.is_cut
                wanted = max(CHUNK_BYTES, framing.missing)
                if wanted > RECORD_BYTES:
                    self.num_long += 1
                    file.seek(framing.missing, os.SEEK_CUR)
                    data, wanted = b"", CHUNK_BYTES
                self._progress(file.tell(), size)
            self.is_cut |= len(data) > 0

    def _checked(self, data: bytes, framing: "_Framing") -> Records:
        starts = np.array(framing.starts, dtype=np.int64)
        ends = np.array(framing.ends, dtype=np.int64)
        sound = _sound_payloads(np.frombuffer(data, dtype=np.uint8), starts, ends - starts)
        if sound.all():
            return Records(data=data, starts=framing.starts, ends=framing.ends)
        self.num_bad += int(np.count_nonzero(~sound))
        return Records(data=data, starts=starts[sound].tolist(), ends=ends[sound].tolist())


class _Framing:
    """Where the records of a buffer begin and end."""

    def __init__(self, data: bytes, *, left: int, lost: bool) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.end = 0
        """Up to where the buffer is used up."""
        self.missing = 0
        """Bytes after the buffer that its last record still needs."""
        self.lost = lost
        """Whether no sound record was found since the last damage."""
        self.num_gaps = 0
        self.is_cut = False
        self._data = data
        self._left = left
        self._scan_quickly()
        if self.end + _HEADER <= len(data):
            sound = sound_headers(data, np.array([self.end])).all()
            if not sound or not self._is_waiting(self.end):
                self._scan_carefully()

    def _scan_quickly(self) -> None:
        """Find records by their lengths, check these all at once, keep those before a bad one."""
        data, size, offset = self._data, len(self._data), 0
        offsets: list[int] = []
        while offset + _HEADER <= size:
            end = offset + _HEADER + _length(data, offset)[0] + _FOOTER
            if end > size:
                break
            offsets.append(offset)
            offset = end
        borders = np.array([*offsets, offset], dtype=np.int64)
        sound = sound_headers(data, borders[:-1])
        number = len(offsets) if sound.all() else int(np.argmin(sound))
        self.starts += (borders[:number] + _HEADER).tolist()
        self.ends += (borders[1 : number + 1] - _FOOTER).tolist()
        self.end = int(borders[number])
        self.lost &= number == 0

    def _scan_carefully(self) -> None:
        """Find the records after damage: every offset with a sound header may be one."""
        data, size, offset = self._data, len(self._data), self.end
        marks = sound_headers(data, np.arange(size - _HEADER + 1)).tobytes()
        while offset < len(marks):
            if not marks[offset]:
                self.num_gaps += not self.lost
                self.lost = True
                found = marks.find(1, offset)
                offset = len(marks) if found < 0 else found
                continue
            end = offset + _HEADER + _length(data, offset)[0] + _FOOTER
            if end <= size:
                self.starts.append(offset + _HEADER)
                self.ends.append(end - _FOOTER)
                self.lost = False
                offset = end
            elif self._is_waiting(offset):
                break
            else:
                offset += 1
        self.end = offset

    def _is_waiting(self, offset: int) -> bool:
        """Return whether the file holds the rest of a record whose sound header is at an offset."""
        missing = _HEADER + _length(self._data, offset)[0] + _FOOTER - (len(self._data) - offset)
        if missing > self._left:
            self.is_cut = self.lost = True
            return False
        self.missing = missing
        return True


def sound_headers(data: bytes, offsets: IntArray) -> BoolArray:
    array = np.frombuffer(data, dtype=np.uint8)
    lengths = np.full(len(offsets), 8, dtype=np.int64)
    return np.asarray(masked_crcs(array, offsets, lengths) == _words(array, offsets + 8))


def _sound_payloads(data: Bytes, starts: IntArray, lengths: IntArray) -> BoolArray:
    sound = np.ones(len(starts), dtype=np.bool_)
    short = np.flatnonzero(lengths <= CHECKED_BYTES)
    crcs = masked_crcs(data, starts[short], lengths[short])
    sound[short] = crcs == _words(data, starts[short] + lengths[short])
    return sound


def _words(data: Bytes, offsets: IntArray) -> Checksums:
    rows = data[offsets[:, np.newaxis] + np.arange(4)]
    return np.asarray(rows.view("<u4").reshape(-1))


def masked_crcs(data: Bytes, starts: IntArray, lengths: IntArray) -> Checksums:
    """Return the masked CRC-32C of each piece of the data, as TFRecord files hold it.

    Byte by byte Python would take longer for it than for all the rest of reading. Here numpy takes
    two bytes of every piece at a time: a table of 65,536 entries, and the state of all pieces in
    one array.
    """
    crcs = np.zeros(len(starts), dtype=np.uint32)
    sizes = np.frexp(lengths.astype(np.float64))[1]
    for size in np.unique(sizes):  # pieces of about the same length together
        pieces = np.flatnonzero(sizes == size)
        pieces = pieces[np.argsort(-lengths[pieces], kind="stable")]
        crcs[pieces] = _crcs(data, starts[pieces], lengths[pieces])
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + _MASK_DELTA


def _crcs(data: Bytes, starts: IntArray, lengths: IntArray) -> Checksums:
    """Return the plain checksums of pieces that come the longest first."""
    width = int(lengths[0]) + int(lengths[0]) % 2
    padded = np.concatenate([data, np.zeros(width, dtype=np.uint8)])
    rows = sliding_window_view(padded, width)[starts] if width else np.empty((len(starts), 0))
    pairs = np.ascontiguousarray(rows.astype(np.uint8, copy=False).view("<u2").T)
    by_byte, by_pair = _tables()
    crcs = np.full(len(starts), 0xFFFFFFFF, dtype=np.uint32)
    for position, pair in enumerate(pairs):
        active = int(np.searchsorted(-lengths, -(2 * position + 2), side="right"))
        mixed = crcs[:active] ^ pair[:active]
        crcs[:active] = by_pair[mixed & np.uint32(0xFFFF)] ^ (mixed >> np.uint32(16))
    odd = np.flatnonzero(lengths % 2)
    if len(odd):
        last = pairs[lengths[odd] // 2, odd].astype(np.uint32)
        mixed = (crcs[odd] ^ last) & np.uint32(0xFF)
        crcs[odd] = by_byte[mixed] ^ (crcs[odd] >> np.uint32(8))
    return crcs ^ np.uint32(0xFFFFFFFF)


@cache
def _tables() -> tuple[Checksums, Checksums]:
    """Return what one byte, and what two bytes, do to the state."""
    by_byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        by_byte = (by_byte >> np.uint32(1)) ^ (by_byte & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    pairs = np.arange(65536, dtype=np.uint32)
    first = by_byte[pairs & np.uint32(0xFF)] ^ (pairs >> np.uint32(8))
    return by_byte, by_byte[first & np.uint32(0xFF)] ^ (first >> np.uint32(8))
