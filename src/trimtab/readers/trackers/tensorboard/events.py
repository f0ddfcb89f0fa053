"""Events of TensorBoard: a time, a step and a summary each, split into points.

The events of one tag differ in three numbers only: time, step and value. So one of them is walked
field by field, and the others are known by the bytes before and after their value.
"""

import re
import struct
from dataclasses import dataclass

from trimtab.readers.trackers.points import Points
from trimtab.readers.trackers.tensorboard import protowire
from trimtab.readers.trackers.tensorboard.protowire import BYTES, FIXED64, VARINT, BadMessage
from trimtab.readers.trackers.tensorboard.summaries import ValueSpan, scalars
from trimtab.readers.trackers.tensorboard.tfrecord import Records

_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # fields of an event

_PLAIN = re.compile(rb"\x09.{8}\x10([\x80-\xff]{0,9}[\x00-\x7f])(?=\x2a)", re.DOTALL)
"""How nearly all events begin: time and step, then the summary."""

_MOST_SHAPES = 65536
"""Shapes that are remembered; there are as many as tags, unless the tags are data."""

_MOST_STEPS = 65536
"""Steps whose bytes are remembered: those of one chunk of a file."""

_double = struct.Struct("<d").unpack_from


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Everything in an event after its step, except the value."""

    number: int
    """That of its tag."""
    after: bytes
    """The bytes after the value."""
    packed: struct.Struct


class EventReader:
    """Takes points out of events."""

    def __init__(self, points: Points) -> None:
        self.num_malformed = 0
        """Events that are not messages, for all that their checksum is right."""
        self._points = points
        self._shapes: dict[bytes, _Shape] = {}
        """By the bytes before the value."""
        self._tails: dict[tuple[int, int], None] = {}
        """How far from the end the value begins and ends: one entry for each kind of writer."""
        self._steps: dict[bytes, int] = {}

    def add(self, records: Records) -> None:
        """Take the points out of some records."""
        data, shapes, tails = records.data, self._shapes, self._tails
        points, steps = self._points, self._steps
        if len(steps) > _MOST_STEPS:
            steps.clear()
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
                        step = steps.get(coded)
                        if step is None:
                            step = steps[coded] = _step(coded)
                        add_number(shape.number)
                        add_step(step)
                        add_value(shape.packed.unpack_from(data, end - before)[0])
                        add_time(_double(data, start + 1)[0])
                        break
                else:
                    self._walk(data, start, end, middle)
            else:
                self._walk(data, start, end, None)

    def _walk(self, data: bytes, start: int, end: int, middle: int | None) -> None:
        """Take an event apart field by field."""
        time, step, summaries = 0.0, 0, []
        try:
            for number, wire, first, last in protowire.fields(data, start, end):
                if (number, wire) == (_WALL_TIME, FIXED64):
                    time = _double(data, first)[0]
                elif (number, wire) == (_STEP, VARINT):
                    step = protowire.signed(first)
                elif (number, wire) == (_SUMMARY, BYTES):
                    summaries.append((first, last))
            found = [scalar for first, last in summaries for scalar in scalars(data, first, last)]
        except BadMessage:
            self.num_malformed += 1
            return
        for scalar in found:
            self._points.add(scalar.tag, step, scalar.value, time)
        if middle is not None and len(found) == 1 and found[0].span is not None:
            number = self._points.number_of(found[0].tag)
            self._remember(data[middle:end], middle, number, found[0].span)

    def _remember(self, rest: bytes, middle: int, number: int, span: ValueSpan) -> None:
        if len(self._shapes) < _MOST_SHAPES:
            before, after = span.start - middle, span.end - middle
            self._tails[len(rest) - before, len(rest) - after] = None
            self._shapes[rest[:before]] = _Shape(
                number=number, after=rest[after:], packed=span.packed
            )


def _step(coded: bytes) -> int:
    return protowire.signed(protowire.varint(coded, 0, len(coded))[0])
