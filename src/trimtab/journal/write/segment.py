"""Write a sealed file: the records of one segment as columns.

Written by hand because Parquet needs a package of 55 MB, and npz loses a whole segment with the
directory at its end. The layout is in header.py, reading in sealed.py. Numbers are little-endian,
as on every machine that PyTorch trains on.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import Block, Column, FloatArray, IntArray
from trimtab.journal.format.entries import SCHEMA
from trimtab.journal.format.header import (
    MAGIC,
    MASK_CHUNK,
    NUMBER_CHUNK,
    Axis,
    Header,
    Signal,
    trailer,
)
from trimtab.journal.format.lines import Entry, encode


def write_segment(path: Path, block: Block, notes: Iterable[Entry]) -> None:
    """Write the block and the notes to a new file, and wait until the disk has it."""
    pieces: list[bytes | memoryview] = [_note_lines(notes)]
    axes = {
        "step": block.step,
        "tick": block.tick,
        "attempt": block.attempt,
        "position": block.data_position,
    }
    header = Header(
        schema=SCHEMA,
        rows=len(block),
        last_tick=int(block.tick[-1]) if len(block) else -1,
        notes_bytes=len(pieces[0]),
        notes_checksum=crc32(pieces[0]),
        axes={name: _add_axis(axis, pieces) for name, axis in axes.items()},
        signals={name: _add_signal(column, pieces) for name, column in block.columns.items()},
    ).line()
    with path.open("wb") as file:
        file.write(MAGIC + header)
        for piece in pieces:
            file.write(piece)
        file.write(header + trailer(header))
        file.flush()
        os.fsync(file.fileno())


def _note_lines(notes: Iterable[Entry]) -> bytes:
    # Numbered anew: what the log had lost is told by a damage note and must not be told twice.
    return b"".join(encode(note | {"note": number}) for number, note in enumerate(notes))


def _add_axis(axis: IntArray, pieces: list[bytes | memoryview]) -> Axis:
    start = int(axis[0]) if len(axis) else 0
    span = Axis(start=start, stride=int(axis[1]) - start if len(axis) > 1 else 0)
    if span.fits(len(axis)) and (np.diff(axis) == span.stride).all():
        return span
    return Axis(checksums=_add(axis.astype("<i8", copy=False), NUMBER_CHUNK, pieces))


def _add_signal(column: Column, pieces: list[bytes | memoryview]) -> Signal:
    checksums = _add(_one_nan(column.values), NUMBER_CHUNK, pieces)
    if column.present.all():
        return Signal(checksums, None)
    packed = np.packbits(column.present, bitorder="little")
    return Signal(checksums, _add(packed, MASK_CHUNK, pieces))


def _one_nan(values: FloatArray) -> FloatArray:
    # The text of a log knows one NaN: a sealed file must not know more than the log it replaces.
    nans = np.isnan(values)
    return np.where(nans, np.nan, values) if nans.any() else np.ascontiguousarray(values)


def _add(
    array: NDArray[np.float64] | NDArray[np.int64] | NDArray[np.uint8],
    chunk: int,
    pieces: list[bytes | memoryview],
) -> tuple[int, ...]:
    """Add an array to the file's pieces; its checksums."""
    # A memoryview of an empty array cannot be cast.
    view = np.ascontiguousarray(array).data.cast("B") if len(array) else memoryview(b"")
    pieces.append(view)
    return tuple(crc32(view[at : at + chunk]) for at in range(0, len(view), chunk))
