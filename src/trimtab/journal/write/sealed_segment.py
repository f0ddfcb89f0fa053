"""Writes a sealed segment: its records as columns.

A format of our own because Parquet needs a package of 55 MB, and npz loses a whole segment with the
directory at its end. The layout is in format/header.py, the reader in
read/sealed_segment.py. Numbers are little-endian, as on every machine that PyTorch trains on.
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


def write_segment(path: Path, block: Block, entries: Iterable[Entry]) -> None:
    """Write the block and the entries to a new file, and wait until it is on disk (fsync)."""
    pieces: list[bytes | memoryview] = [_entry_lines(entries)]
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
        entries_bytes=len(pieces[0]),
        entries_checksum=crc32(pieces[0]),
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


def _entry_lines(entries: Iterable[Entry]) -> bytes:
    # Numbered again: a damage entry reports what the log had lost, and a gap would report it twice.
    return b"".join(encode(entry | {"note": number}) for number, entry in enumerate(entries))


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
    # The text of a log has one NaN: a sealed segment must not keep more than the log it replaces.
    nans = np.isnan(values)
    return np.where(nans, np.nan, values) if nans.any() else np.ascontiguousarray(values)


def _add(
    array: NDArray[np.float64] | NDArray[np.int64] | NDArray[np.uint8],
    chunk: int,
    pieces: list[bytes | memoryview],
) -> tuple[int, ...]:
    """Add an array to the file's pieces; returns its checksums."""
    # A memoryview of an empty array cannot be cast.
    view = np.ascontiguousarray(array).data.cast("B") if len(array) else memoryview(b"")
    pieces.append(view)
    return tuple(crc32(view[at : at + chunk]) for at in range(0, len(view), chunk))
