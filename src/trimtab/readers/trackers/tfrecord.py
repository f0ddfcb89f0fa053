"""TFRecord files: [length u64][its checksum][payload][its checksum], again and again.

No length is believed before it is checked against its checksum and against the file. A payload that
is not what was written costs its record; a length that is not, everything after it.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import BoolArray, IntArray
from trimtab.readers.log_file import Progress
from trimtab.readers.trackers.protowire import Damage

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
    rest: bytes
    """What follows the last whole record."""


def read_records(path: Path, progress: Progress, damage: Damage) -> Iterator[Records]:
    """Yield the sound records of a file, some thousands at a time."""
    with path.open("rb") as file:
        # What is written from now on is left to the next reading.
        size = left = os.fstat(file.fileno()).st_size
        rest, missing = b"", 0
        while block := file.read(min(max(CHUNK_BYTES, missing), left)):
            records = _whole_records(rest + block, damage)
            yield records
            rest, missing, left = records.rest, 0, size - file.tell()
            if len(rest) >= _HEADER:
                if not is_sound_header(rest):
                    damage.num_lost_bytes += len(rest) + left
                    return
                missing = _HEADER + _length(rest)[0] + _FOOTER - len(rest)
                if missing > left:
                    break
                if missing > RECORD_BYTES:
                    damage.num_long += 1
                    left -= missing
                    file.seek(size - left)
                    rest, missing = b"", 0
            progress(file.tell(), size)
        damage.num_cut += len(rest) > 0


def _whole_records(data: bytes, damage: Damage) -> Records:
    """Find records by their lengths, check these all at once, keep those before a bad one."""
    size, offset = len(data), 0
    offsets: list[int] = []
    while offset + _HEADER <= size:
        end = offset + _HEADER + _length(data, offset)[0] + _FOOTER
        if end > size:
            break
        offsets.append(offset)
        offset = end
    borders = np.array([*offsets, offset], dtype=np.int64)
    array = np.frombuffer(data, dtype=np.uint8)
    sound = _sound(array, borders[:-1], np.full(len(offsets), _HEADER - 4))
    number = len(offsets) if sound.all() else int(np.argmin(sound))
    starts, ends = borders[:number] + _HEADER, borders[1 : number + 1] - _FOOTER
    kept = np.ones(number, dtype=np.bool_)
    short = np.flatnonzero(ends - starts <= CHECKED_BYTES)
    kept[short] = _sound(array, starts[short], (ends - starts)[short])
    damage.num_bad += int(np.count_nonzero(~kept))
    rest = data[int(borders[number]) :]
    return Records(data=data, starts=starts[kept].tolist(), ends=ends[kept].tolist(), rest=rest)


def is_sound_header(data: bytes) -> bool:
    """Return whether some bytes begin with a length and its checksum."""
    array = np.frombuffer(data[:_HEADER], dtype=np.uint8)
    return len(array) == _HEADER and bool(_sound(array, np.array([0]), np.array([8])).all())


def _sound(data: Bytes, starts: IntArray, lengths: IntArray) -> BoolArray:
    """Return which pieces of the data are followed by their own checksum."""
    stored = data[(starts + lengths)[:, np.newaxis] + np.arange(4)].view("<u4").reshape(-1)
    return np.asarray(masked_crcs(data, starts, lengths) == stored)


def masked_crcs(data: Bytes, starts: IntArray, lengths: IntArray) -> Checksums:
    """Return the masked CRC-32C of each piece of the data, as TFRecord files hold it.

    Piece by piece Python would take longer for it than for all the rest of reading. Here numpy
    takes the next byte of every piece at a time, the longest pieces first.
    """
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    crcs = np.full(len(order), 0xFFFFFFFF, dtype=np.uint32)
    for position in range(int(lengths.max(initial=0))):
        number = int(np.searchsorted(-lengths, -position))  # pieces that are longer than this
        state = crcs[:number]
        mixed = (state ^ data[starts[:number] + position]) & np.uint32(0xFF)
        crcs[:number] = _table()[mixed] ^ (state >> np.uint32(8))
    crcs[order] = ~crcs
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + _MASK_DELTA


@cache
def _table() -> Checksums:
    """Return what one byte does to the state."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table
