"""A sealed segment: records as columns, written once, read only as far as requested, and checked.

A format of our own because Parquet needs a package of 55 MB, and npz loses a whole segment with the
directory at its end. The layout is in header.py. Numbers are little-endian, as on every machine
that PyTorch trains on.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader, FileIO
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import Block, BoolArray, Column, FloatArray, IntArray
from trimtab.journal.files import open_new, open_regular, read_regular
from trimtab.journal.header import (
    CHUNK_ROWS,
    MAGIC,
    MASK_CHUNK,
    NUMBER_CHUNK,
    TRAILER_BYTES,
    Axis,
    Header,
    Signal,
    trailer,
)
from trimtab.journal.lines import (
    SCHEMA,
    Damage,
    DamageKind,
    Entry,
    decode_line,
    encode_line,
    schema_of,
)
from trimtab.journal.log_segment import MAX_LINE_BYTES, ColumnTarget, LogParser, ReadLosses


def write_segment(path: Path, block: Block, entries: Iterable[Entry]) -> None:
    """Write the block and the entries to a new file, and wait until it is on disk (fsync)."""
    # Numbered again: a damage entry reports what the log had lost, and a gap would report it twice.
    lines = (encode_line(entry | {"note": number}) for number, entry in enumerate(entries))
    pieces: list[bytes | memoryview] = [b"".join(lines)]
    axes = {"step": block.step, "tick": block.tick, "attempt": block.attempt}
    axes["position"] = block.data_position
    header = Header(
        schema=SCHEMA,
        rows=len(block),
        last_tick=int(block.tick[-1]) if len(block) else -1,
        entries_bytes=len(pieces[0]),
        entries_checksum=crc32(pieces[0]),
        axes={name: _add_axis(axis, pieces) for name, axis in axes.items()},
        signals={name: _add_signal(column, pieces) for name, column in block.columns.items()},
    ).line()
    # The header twice, before and after the data: without one nothing in the file can be found, so
    # a single flipped byte would cost all of it.
    with open_new(path) as file:
        file.write(MAGIC + header)
        for piece in pieces:
            file.write(piece)
        file.write(header + trailer(header))
        file.flush()
        os.fsync(file.fileno())


def _add_axis(axis: IntArray, pieces: list[bytes | memoryview]) -> Axis:
    # Most runs count on without a break: two numbers stand for the whole axis.
    span = Axis.of(axis)
    return span or Axis(checksums=_add(axis.astype("<i8", copy=False), NUMBER_CHUNK, pieces))


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


_MAX_CLAIMED = 2**28
"""Bytes that a header may always claim, even if the file has fewer: the rest of a file that was cut
off can be read. Beyond this, memory is not allocated on the word of a header."""

_MAX_SIZE = 2**32
"""Bytes of a segment. Chosen: 32,768 signals of 16,384 records. A sparse file can have any size."""


class SealedSegment:
    """One sealed segment. The file is opened for each read, so a long journal keeps none open."""

    def __init__(self, path: Path) -> None:
        """Read header and entries; raises ValueError if neither copy of the header is valid."""
        self.path = path
        self.file = path.name
        with BufferedReader(open_regular(path)) as file:
            size = os.fstat(file.fileno()).st_size
            self.header, length, second = _find_header(file, size)
            self._base = len(MAGIC) + length
            self._offsets = self.header.offsets()
            claimed = self._offsets["end", ""]
            if claimed > max(min(size, _MAX_SIZE), _MAX_CLAIMED):
                raise ValueError(f"its header claims {claimed} bytes, the file has {size}")
            self._size = self._base + claimed + length + TRAILER_BYTES
            self.entries, self.damage = self._read_entries(file)
        self.rows, self.last_tick = self.header.rows, self.header.last_tick
        self.schema = max(self.header.schema, schema_of(self.entries))
        """The highest schema that it names, of the columns or of the lines."""
        if second:
            sentence = (
                f"{self.file} has a damaged header; the second copy was used, nothing is lost"
            )
            self.damage.append(self._damage(DamageKind.DAMAGED_HEADER, sentence))

    def names(self) -> dict[str, bool]:
        return {name: signal.mask is None for name, signal in self.header.signals.items()}

    def ranges(self) -> dict[str, Axis]:
        return {n: axis for n, axis in self.header.axes.items() if axis.checksums is None}

    def read(self, axes: Mapping[str, IntArray], columns: Mapping[str, ColumnTarget]) -> ReadLosses:
        losses = ReadLosses()
        if not self.rows:
            return losses
        try:
            with open_regular(self.path) as file:
                self._read_axes(file, axes, losses)
                for name, target in columns.items():
                    self._read_column(file, name, target, axes["tick"], losses)
        except OSError as error:
            losses.rows.append(slice(0, self.rows))
            sentence = f"{self.file} cannot be read: {error}; its records are lost"
            losses.damage.append(self._damage(DamageKind.UNREADABLE, sentence))
        return losses

    def is_whole(self) -> bool:
        """Read the whole file and return whether every byte is as it was written."""
        if self.damage:
            return False
        # Before a log is removed: the sealed file is all that is left of its records.
        axes = {name: np.empty(self.rows, dtype=np.int64) for name in self.header.axes}
        scratch = ColumnTarget(np.empty(self.rows), np.empty(self.rows, dtype=np.bool_))
        if self.read(axes, dict.fromkeys(self.names(), scratch)).damage:
            return False
        try:
            data = read_regular(self.path, _MAX_SIZE)
        except OSError:
            return False
        header = data[len(MAGIC) : self._base]
        return (
            len(data) == self._size
            and data.startswith(MAGIC)
            and data.endswith(header + trailer(header))
        )

    def _read_axes(self, file: FileIO, axes: Mapping[str, IntArray], losses: ReadLosses) -> None:
        for name, out in axes.items():
            axis = self.header.axes[name]
            if axis.checksums is None:
                axis.fill(out)
                continue
            for rows in self._read_checked(file, ("axis", name), out, axis.checksums, NUMBER_CHUNK):
                out[rows] = -1  # no random ticks in the report on these rows
                losses.rows.append(rows)
                sentence = f"{self.file} has lost {_span(rows)}: their {name} is damaged"
                losses.damage.append(self._damage(DamageKind.DAMAGED_AXIS, sentence))

    def _read_column(
        self, file: FileIO, name: str, target: ColumnTarget, ticks: IntArray, losses: ReadLosses
    ) -> None:
        signal, values = self.header.signals[name], target.values
        lost = self._read_checked(file, ("values", name), values, signal.checksums, NUMBER_CHUNK)
        if target.present is not None:
            lost += self._read_mask(file, name, signal.mask, target.present)
            np.copyto(values, np.nan, where=~target.present)
        for rows in lost:
            first, last = int(ticks[rows.start]), int(ticks[rows.stop - 1])
            sentence = f"{self.file} has lost {name!r} in {_span(rows)}, ticks {first} to {last}"
            damage = self._damage(DamageKind.DAMAGED_CHUNK, sentence, (first, last), name)
            losses.values.append((name, rows))
            losses.damage.append(damage)

    def _read_mask(
        self, file: FileIO, name: str, sums: Sequence[int] | None, out: BoolArray
    ) -> list[slice]:
        if sums is None:
            out[:] = True
            return []
        packed = np.empty(-(-self.rows // 8), dtype=np.uint8)
        lost = self._read_checked(file, ("mask", name), packed, sums, MASK_CHUNK)
        out[:] = np.unpackbits(packed, count=self.rows, bitorder="little")
        return lost

    def _read_checked(
        self,
        file: FileIO,
        section: tuple[str, str],
        out: NDArray[np.float64] | NDArray[np.int64] | NDArray[np.uint8],
        sums: Sequence[int],
        chunk: int,
    ) -> list[slice]:
        """Read one section and check it chunk by chunk; returns the rows that are lost."""
        view, at = out.data.cast("B"), self._base + self._offsets[section]
        got = _read_into(file, view, at)
        pieces = [view[start : start + chunk] for start in range(0, len(view), chunk)]
        found = [crc32(piece) for piece in pieces]
        # The usual case: no chunk needs to be examined by itself.
        if got == len(view) and found == sums:
            return []
        bad = []
        for number, (piece, expected) in enumerate(zip(pieces, sums, strict=True)):
            start = number * chunk
            if start + len(piece) > got or found[number] != expected:
                bad.append(number)
        return [slice(a * CHUNK_ROWS, min(b * CHUNK_ROWS, self.rows)) for a, b in _runs(bad)]

    def _read_entries(
        self, file: "BufferedReader[FileIO]"
    ) -> tuple[tuple[Entry, ...], list[Damage]]:
        file.seek(self._base)
        data = file.read(min(self.header.entries_bytes, _MAX_CLAIMED))
        if crc32(data) == self.header.entries_checksum:
            return _parse(data, self.file), []
        # Each line has its own checksum, so the sound ones can be kept.
        sentence = f"{self.file} has lost some of its lines that are not records"
        return _parse(data, self.file), [self._damage(DamageKind.DAMAGED_LINES, sentence)]

    def _damage(
        self,
        kind: DamageKind,
        sentence: str,
        ticks: tuple[int, int] | None = None,
        signal: str | None = None,
    ) -> Damage:
        return Damage(kind=kind, file=self.file, sentence=sentence, ticks=ticks, signal=signal)


def _find_header(file: "BufferedReader[FileIO]", size: int) -> tuple[Header, int, bool]:
    """Find the header; return it, the length of its line, and whether it is the second copy."""
    file.seek(len(MAGIC))
    line = file.readline(MAX_LINE_BYTES)
    entry = decode_line(line.removesuffix(b"\n"))
    if entry is not None:
        return Header.parse(entry), len(line), False
    file.seek(max(size - TRAILER_BYTES, 0))
    try:
        length = int(file.read(8), 16)
    except ValueError:
        length = 0
    if 0 < length <= min(size - TRAILER_BYTES, MAX_LINE_BYTES):
        file.seek(size - TRAILER_BYTES - length)
        entry = decode_line(file.read(length).removesuffix(b"\n"))
    if entry is None:
        raise ValueError("both copies of its header are damaged")
    return Header.parse(entry), length, True


def _parse(data: bytes, file: str) -> tuple[Entry, ...]:
    parser = LogParser(file)
    parser.feed(data)
    return parser.pop().entries


def _read_into(file: FileIO, out: memoryview, at: int) -> int:
    """Fill a buffer from an offset in the file; returns how many bytes there were."""
    file.seek(at)
    got = file.readinto(out)
    while 0 < got < len(out) and (more := file.readinto(out[got:])):
        got += more
    return got


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers as (first, last + 1)."""
    start = 0
    for index, number in enumerate(numbers, 1):
        if index == len(numbers) or numbers[index] != number + 1:
            yield numbers[start], number + 1
            start = index


def _span(rows: slice) -> str:
    return f"rows {rows.start} to {rows.stop - 1}"
