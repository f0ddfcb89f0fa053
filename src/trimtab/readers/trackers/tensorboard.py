"""TensorBoard event files: TFRecord files of protobuf events, one or several to a run.

Read without tensorboard or protobuf. Every scalar is read: TensorBoard's own reader keeps a sample
of 10,000 for each tag. An event has a time, a step and a summary; a scalar in it is a
`simple_value`, or a tensor of one element.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimtab.readers.folders import first_number, newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers import protowire
from trimtab.readers.trackers.conventions import restore_if_hf
from trimtab.readers.trackers.points import Points
from trimtab.readers.trackers.protowire import BYTES, FIXED32, FIXED64, VARINT, BadMessage, Damage
from trimtab.readers.trackers.tfrecord import Records, is_sound_header, read_records

_MARK = b"brain.Event:"
_WRITTEN = re.compile(r"tfevents\.(\d{1,18})")


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    """Read an event file, or all event files of a folder as one run."""
    paths = _event_files(path.iterdir()) if path.is_dir() else [path]
    paths.sort(key=lambda one: (first_number(_WRITTEN, one.name), one.name))
    total = sum(one.stat().st_size for one in paths)
    points = Points()
    damage = Damage()
    events = _EventReader(points, damage)
    done, latest, overlap = 0, 0.0, False
    for one in paths:
        first = len(points)
        for records in read_records(one, _part_of(progress, done, total), damage):
            events.add(records)
        times = np.array(points.times[first:])
        times = times[np.isfinite(times)]
        if len(times):
            overlap |= float(times.min()) < latest
            latest = max(latest, float(times.max()))
        done += one.stat().st_size
    table = points.to_table(by_time=overlap)
    table.note_counts(damage.counts)
    if overlap:
        table.add_note("Several event files were written at the same time; ordered by the clock.")
    return table


def _runs_among(files: Sequence[Path]) -> list[Path]:
    """Return the folders with event files in them, each a run, the newest first."""
    newest = newest_first(_event_files(files))
    return list(dict.fromkeys(file.parent for file in newest))


def _part_of(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def _event_files(files: Iterable[Path]) -> list[Path]:
    return [file for file in files if "tfevents" in file.name and file.is_file()]


# Events

_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # fields of an event

_PLAIN = re.compile(rb"\x09.{8}\x10([\x80-\xff]{0,9}[\x00-\x7f])(?=\x2a)", re.DOTALL)
"""How nearly all events begin: time and step, then the summary."""

_MOST_SHAPES = 65536
"""Shapes that are remembered; there are as many as tags, unless the tags are data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Everything in an event after its step, except the value."""

    number: int
    """That of its tag."""
    after: bytes
    """The bytes after the value."""
    packed: struct.Struct


class _EventReader:
    """Converts events into points.

    The events of one tag differ in three numbers only: time, step and value. So one of them is
    walked field by field, and the others are known by the bytes before and after their value.
    """

    def __init__(self, points: Points, damage: Damage) -> None:
        self._points = points
        self._damage = damage
        self._shapes: dict[bytes, _Shape] = {}
        """By the bytes before the value."""
        self._tails: dict[tuple[int, int], None] = {}
        """How far from the end the value begins and ends: one entry for each kind of writer."""

    def add(self, records: Records) -> None:
        data, shapes, tails = records.data, self._shapes, self._tails
        points, step, last_coded = self._points, 0, b"\0"
        # Bound once: this loop is where the time goes.
        add_number, add_step = points.numbers.append, points.steps.append
        add_value, add_time = points.values.append, points.times.append
        for start, end in zip(records.starts, records.ends, strict=True):
            plain = _PLAIN.match(data, start, end)
            if plain is not None:
                middle, coded = plain.end(), plain[1]
                for before, after in tails:
                    shape = shapes.get(data[middle : end - before])
                    if shape is not None and data[end - after : end] == shape.after:
                        if coded != last_coded:  # what is logged together has one step
                            number, _ = protowire.varint(coded, 0, len(coded))
                            step, last_coded = protowire.signed(number), coded
                        add_number(shape.number)
                        add_step(step)
                        add_value(shape.packed.unpack_from(data, end - before)[0])
                        add_time(_DOUBLE.unpack_from(data, start + 1)[0])
                        break
                else:
                    self._walk(data, start, end, middle)
            else:
                self._walk(data, start, end, None)

    def _walk(self, data: bytes, start: int, end: int, middle: int | None) -> None:
        """Add the points of an event, field by field."""
        time, step, summaries = 0.0, 0, []
        try:
            for number, wire, first, last in protowire.fields(data, start, end):
                if (number, wire) == (_WALL_TIME, FIXED64):
                    time = _DOUBLE.unpack_from(data, first)[0]
                elif (number, wire) == (_STEP, VARINT):
                    step = protowire.signed(first)
                elif (number, wire) == (_SUMMARY, BYTES):
                    summaries.append((first, last))
            found = [one for first, last in summaries for one in _scalars(data, first, last)]
        except BadMessage:
            self._damage.num_bad += 1
            return
        for scalar in found:
            value = float(scalar.packed.unpack_from(data, scalar.start)[0])
            self._points.add(scalar.tag, step, value, time)
        if middle is not None and len(found) == 1 and len(self._shapes) < _MOST_SHAPES:
            (scalar,) = found
            self._tails[end - scalar.start, end - scalar.end] = None
            self._shapes[data[middle : scalar.start]] = _Shape(
                number=self._points.number_of(scalar.tag),
                after=data[scalar.end : end],
                packed=scalar.packed,
            )


# Summaries

_VALUE = 1  # field of a summary
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8  # fields of a value
_DTYPE, _SHAPE, _CONTENT, _FLOATS, _DOUBLES = 1, 2, 4, 5, 6  # fields of a tensor

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_CONTENTS: Mapping[tuple[int, int], struct.Struct] = {
    (1, 4): _FLOAT,
    (2, 8): _DOUBLE,
    (3, 4): struct.Struct("<i"),
    (9, 8): struct.Struct("<q"),
    (19, 2): struct.Struct("<e"),
}
"""How the content of a tensor of one element is packed, by its dtype and its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scalar:
    """One scalar of a summary: its name, and where its number is."""

    tag: str
    start: int
    end: int
    packed: struct.Struct


def _scalars(data: bytes, start: int, end: int) -> Iterator[_Scalar]:
    """Yield the scalars of the summary in data[start:end]; raises BadMessage if it is not one."""
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (_VALUE, BYTES):
            yield from _scalar(data, first, last)


def _scalar(data: bytes, start: int, end: int) -> list[_Scalar]:
    """Return the value of a summary, if it is a scalar."""
    tag, found = "", None
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (_TAG, BYTES):
            tag = protowire.text(data, first, last)
        elif (number, wire) == (_SIMPLE_VALUE, FIXED32):
            found = (first, last, _FLOAT)
        elif (number, wire) == (_TENSOR, BYTES):
            found = _element(data, first, last)
    if found is None:
        return []
    first, last, packed = found
    return [_Scalar(tag=tag, start=first, end=last, packed=packed)]


def _element(data: bytes, start: int, end: int) -> tuple[int, int, struct.Struct] | None:
    """Return where the number of a tensor is, and how it is packed; None unless it has only one.

    TensorFlow writes the content of a tensor, torch a list of floats.
    """
    dtype, found = 0, None
    for number, wire, first, last in protowire.fields(data, start, end):
        packed = None
        if (number, wire) == (_DTYPE, VARINT):
            dtype = first
        elif (number, wire) == (_SHAPE, BYTES) and not _is_single(data, first, last):
            return None
        elif (number, wire) == (_CONTENT, BYTES):
            packed = _CONTENTS.get((dtype, last - first))
        elif number == _FLOATS and wire in (FIXED32, BYTES) and last - first == 4:
            packed = _FLOAT
        elif number == _DOUBLES and wire in (FIXED64, BYTES) and last - first == 8:
            packed = _DOUBLE
        if packed is not None:
            found = (first, last, packed)
    return found


def _is_single(data: bytes, start: int, end: int) -> bool:
    """Return whether a shape is that of one element: no dimensions, or all of size one."""
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (2, BYTES):
            sizes = [f[2] for f in protowire.fields(data, first, last) if f[:2] == (1, VARINT)]
            if sizes != [1]:
                return False
    return True


TENSORBOARD = Format(
    name="tensorboard",
    description="TensorBoard event files",
    matches=lambda head: is_sound_header(head) or _MARK in head[:64],  # damaged at its start
    load=_read,
    finish=restore_if_hf,
    binary=True,
    logs_among=_runs_among,
)
