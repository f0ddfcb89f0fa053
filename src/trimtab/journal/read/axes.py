"""The axes of a journal: steps, ticks, attempts and data positions of all its records.

Most runs count on without a break. Such an axis is a range, known from the headers of the files: it
takes no memory if it is constant, and axes that are the same range share it. At 5,000,000 records
four arrays would take 160 MB.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from trimtab.core.block import IntArray
from trimtab.journal.format.header import AXES, Axis
from trimtab.journal.read.segment import Segment


class JournalAxes:
    """The axes of all segments; those that are no range are filled file by file."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.rows = sum(segment.rows for segment in segments)
        known = [(segment.rows, segment.ranges()) for segment in segments if segment.rows]
        shared: dict[Axis, IntArray] = {}
        self._arrays: dict[str, IntArray] = {}
        self._filled = {"tick"}
        """What the segments fill; always the tick, which they report damage by."""
        for name in AXES:
            found = _join([(rows, ranges.get(name)) for rows, ranges in known])
            if found is None:
                self._arrays[name] = np.empty(self.rows, dtype=np.int64)
                self._filled.add(name)
            elif found.stride == 0 and name != "tick":
                self._arrays[name] = np.broadcast_to(np.int64(found.start), (self.rows,))
            else:
                if found not in shared:
                    shared[found] = np.empty(self.rows, dtype=np.int64)
                    found.fill(shared[found])
                self._arrays[name] = shared[found]

    @property
    def tick(self) -> IntArray:
        """The tick of every record."""
        return self._arrays["tick"]

    def part(self, span: slice) -> dict[str, IntArray]:
        """What a segment with these rows fills."""
        return {name: self._arrays[name][span] for name in AXES if name in self._filled}

    def take(self, order: IntArray | None) -> dict[str, IntArray]:
        """All axes, or some of their rows."""
        if order is None:
            return dict(self._arrays)
        return {name: axis[order] for name, axis in self._arrays.items()}


def find_ranges(axes: Mapping[str, IntArray]) -> dict[str, Axis]:
    """The axes that are a range."""
    found = {}
    for name, values in axes.items():
        if len(values):
            stride = int(values[1]) - int(values[0]) if len(values) > 1 else 0
            fits = abs(stride) < 2**63  # any two numbers of 64 bits may be further apart
            if fits and (values[1:] == values[:-1] + stride).all():
                found[name] = Axis(start=int(values[0]), stride=stride)
    return found


def _join(parts: Sequence[tuple[int, Axis | None]]) -> Axis | None:
    """The range that the ranges of consecutive files are together; None if they are not one."""
    joined: Axis | None = None
    length = 0
    for rows, axis in parts:
        if axis is None:
            return None
        if joined is None:
            joined, length = axis, rows
            continue
        gap = axis.start - (joined.start + joined.stride * (length - 1))
        stride = gap if length == 1 else joined.stride
        if gap != stride or (rows > 1 and axis.stride != stride):
            return None
        joined, length = Axis(start=joined.start, stride=stride), length + rows
    return joined if joined is None or joined.fits(length) else None
