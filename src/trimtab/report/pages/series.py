"""The signals of a run as the JSON of charts: decimated lines, heat maps, and their axes.

A chart has fewer points than the run has records, but the same picture and true peaks: every bucket
of records keeps its smallest and its largest value, at their own steps. A spike of one step stays
as high as it was; averages and LTTB sampling would lower or drop it.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trimtab.core.block import Block, BoolArray, Column, FloatArray, IntArray
from trimtab.core.jsonable import number_from_json
from trimtab.core.signals import EVAL_LOSS

BUCKETS = 2000
"""Buckets of one series: more than the pixels of a chart on most screens."""

DETAIL_ROWS = 4096
"""Records around incidents that are kept one by one, over all incidents of a run."""

DETAIL_MARGIN = 256
"""Records before and after an incident that are kept one by one."""

MAX_GONE = 12
"""Earlier attempts drawn; a run that went back more often shows the last ones."""

COLUMNS = 400
MAX_ROWS = 128
"""Layers drawn; of more, every second or third one."""

LOG_RATIO = 20.0
"""Over this ratio of the largest or smallest value to the median the axis is logarithmic. Source:
the same limit as in the terminal's curves."""

HEAD_SHARE, MIN_VALUES = 0.1, 20
"""The first tenth of a long enough run does not set the range: the loss of an untrained model would
flatten the rest."""

SPREADS = 30.0
"""A peak beyond this many spreads of most values leaves the chart at its edge, where it is marked;
with more, the rest of the curve would be flatter than 4 of its 130 pixels."""

_HUGE = 1e28
"""No axis is longer: uPlot has no ticks beyond 1e32. Larger values leave the chart at its edge."""

SAMPLE = 50_000
"""Values that stand for all of a long run where only their usual size is needed."""


def percentiles(values: FloatArray, shares: Sequence[float]) -> list[float]:
    """Return percentiles of evenly spaced values; those of enormous numbers may be infinite."""
    sample = values[:: -(-len(values) // SAMPLE) or 1]
    with np.errstate(over="ignore", invalid="ignore"):
        return [float(value) for value in np.percentile(sample, shares)]


def choose_axis(values: FloatArray) -> dict[str, Any]:
    """Return `log` and `range` of a chart for its finite values, in the order of steps."""
    if not len(values):
        return {"log": False, "range": None}
    body = values[int(HEAD_SHARE * len(values)) :] if len(values) >= MIN_VALUES else values
    first, middle, last = percentiles(body, (1, 50, 99))
    low, high = float(body.min()), float(body.max())
    if low > 0 and (high > LOG_RATIO * middle or middle > LOG_RATIO * low):
        return {"log": True, "range": _short(low, high)}
    spread = last - first
    if spread > 0:
        high = min(high, last + SPREADS * spread)
        low = max(low, first - SPREADS * spread)
    if low == high:
        pad = abs(low) / 2 or 1.0
        low, high = low - pad, high + pad
    return {"log": False, "range": _short(low, high)}


def shared_axis(lines: Sequence[FloatArray]) -> dict[str, Any]:
    """Return the axis of a chart with several lines: each of them is visible."""
    axes = [choose_axis(values) for values in lines if len(values)]
    # A single line keeps its own range, with the first tenth left out.
    if len(axes) < 2:
        return axes[0] if axes else choose_axis(np.empty(0))
    low = min(axis["range"][0] for axis in axes)
    high = max(axis["range"][1] for axis in axes)
    least = min(float(values.min()) for values in lines if len(values))
    is_wide = low > 0 and high > LOG_RATIO * low
    is_log = least > 0 and (is_wide or any(axis["log"] for axis in axes))
    return {"log": is_log, "range": _short(max(low, least) if is_log else low, high)}


def _short(low: float, high: float) -> list[float]:
    return [float(f"{min(max(edge, -_HUGE), _HUGE):.6g}") for edge in (low, high)]


def evaluation_losses(block: Block) -> dict[int, float]:
    """Return the finite losses of evaluations by step: those of the signal, else of the events."""
    column = block.column(EVAL_LOSS)
    if column.recorded:
        rows = column.finite
        return dict(zip(block.step[rows].tolist(), column.values[rows].tolist(), strict=True))
    found = {}
    for event in block.events:
        loss = number_from_json(event.facts.get("loss")) if event.kind == "evaluation" else None
        if loss is not None and math.isfinite(loss):
            found[event.step] = loss
    return dict(sorted(found.items()))


def minmax_rows(values: FloatArray, buckets: int = BUCKETS) -> IntArray:
    """Return the rows of the smallest and largest of the finite values of each bucket, in order."""
    length = len(values)
    if length <= 2 * buckets:
        return np.arange(length)
    size = -(-length // buckets)
    whole = length // size
    parts = values[: whole * size].reshape(whole, size)
    starts = np.arange(whole) * size
    # The first and the last value too: a line begins and ends where the run does.
    rows = [starts + parts.argmin(axis=1), starts + parts.argmax(axis=1), np.array([0, length - 1])]
    rest = values[whole * size :]
    if len(rest):
        rows.append(whole * size + np.array([rest.argmin(), rest.argmax()]))
    return np.unique(np.concatenate(rows))


def stretches(mask: BoolArray, buckets: int = BUCKETS) -> list[tuple[int, int]]:
    """Return first and last row of each stretch of true values; those in one bucket are joined."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return []
    reach = max(-(-len(mask) // buckets), 1)
    breaks = np.flatnonzero(np.diff(rows) > reach)
    firsts = rows[np.concatenate([[0], breaks + 1])]
    lasts = rows[np.concatenate([breaks, [len(rows) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLines:
    """A run prepared for its charts.

    A line has up to three parts: the records that led to the end of the run, those of earlier
    attempts that were repeated, and the stretches of steps at which a value was not finite.
    """

    block: Block
    is_gone: BoolArray
    """Records whose step was repeated later."""
    attempts: tuple[tuple[int, int], ...]
    """First row and the row after the last of each attempt."""
    is_detail: BoolArray
    """Records that are kept one by one."""

    @classmethod
    def of(cls, block: Block, incident_ticks: Sequence[tuple[int, int]] = ()) -> "RunLines":
        """Prepare a run; `incident_ticks` are onset and end of incidents, the worst first."""
        attempts = _attempts(block)
        return cls(
            block=block,
            is_gone=_superseded(block, attempts),
            attempts=attempts,
            is_detail=_detail(block, incident_ticks),
        )

    def line(self, name: str, buckets: int = BUCKETS) -> dict[str, Any]:
        """Return one signal as JSON values."""
        column = self.block.column(name)
        kept = self._points(column, np.flatnonzero(~self.is_gone), buckets)
        gone = []
        for first, last in self.attempts[-MAX_GONE - 1 :]:
            rows = first + np.flatnonzero(self.is_gone[first:last])
            if len(rows) and (part := self._points(column, rows, max(buckets // 4, 1)))["x"]:
                gone.append(part)
        line: dict[str, Any] = {"label": name, "signal": name, **kept}
        if gone:
            line["gone"] = gone
        nonfinite = column.nonfinite
        if nonfinite.any():
            line["nonfinite"] = [
                [int(self.block.step[a]), int(self.block.step[b]), int(is_gone)]
                for is_gone, mask in ((True, self.is_gone), (False, ~self.is_gone))
                for a, b in stretches(nonfinite & mask, buckets // 4)
            ]
        return line

    def _points(self, column: Column, rows: IntArray, buckets: int) -> dict[str, Any]:
        """Return the points of these rows, with a gap wherever values are not finite."""
        finite = column.finite[rows]
        good = rows[finite]
        values = column.values[good]
        chosen = good[minmax_rows(values, buckets)]
        detail = good[self.is_detail[good]]
        if len(detail):
            chosen = np.union1d(chosen, detail)
        x: list[int] = self.block.step[chosen].tolist()
        y: list[float | None] = list(short(column.values[chosen]))
        bad = rows[column.present[rows] & ~finite]
        places, first = np.unique(np.searchsorted(chosen, bad), return_index=True)
        steps = self.block.step[bad[first]]
        for place, step in zip(places[::-1].tolist(), steps[::-1].tolist(), strict=True):
            if 0 < place < len(chosen):  # a line must not run through a NaN
                x.insert(place, step)
                y.insert(place, None)
        return {"x": x, "y": y}


def short(values: FloatArray) -> list[float]:
    """Return the values in six significant digits: more cannot be seen, and takes room."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _attempts(block: Block) -> tuple[tuple[int, int], ...]:
    if not len(block):
        return ()
    step, attempt = block.step, block.attempt
    went_back = (step[1:] < step[:-1]) | (attempt[1:] != attempt[:-1])
    edges = [0, *(np.flatnonzero(went_back) + 1).tolist(), len(block)]
    return tuple(pairwise(edges))


def _superseded(block: Block, attempts: Sequence[tuple[int, int]]) -> BoolArray:
    """Return the records whose step was repeated in a later attempt."""
    is_gone = np.zeros(len(block), dtype=np.bool_)
    earliest = np.iinfo(np.int64).max
    # From the last attempt back: a record is gone if a later one reached its step again.
    for first, last in reversed(attempts):
        is_gone[first:last] |= block.step[first:last] >= earliest
        earliest = min(earliest, int(block.step[first:last].min()))
    return is_gone


def _detail(block: Block, ticks: Sequence[tuple[int, int]]) -> BoolArray:
    is_detail = np.zeros(len(block), dtype=np.bool_)
    left = DETAIL_ROWS
    # The worst incidents come first, so that the budget goes to those that matter; one that does
    # not fit ends it, so that no incident is drawn in half its detail.
    for onset, last in ticks:
        start = max(block.row_of(onset) - DETAIL_MARGIN, 0)
        stop = min(block.row_of(last) + DETAIL_MARGIN, start + 4 * DETAIL_MARGIN, len(block))
        left -= max(stop - start, 0)
        if left < 0:
            break
        is_detail[start:stop] = True
    return is_detail


def heat_map(
    lines: RunLines, names: Sequence[str], prefix: str, *, is_histogram: bool = False
) -> dict[str, Any] | None:
    """Return the signals of many layers, one row each; None if none was recorded.

    A cell holds the base-2 logarithm of the value over the layer's median, of the record in which
    it is furthest from 0: a jump of one record stays visible. "x" is a value that is not finite. In
    a histogram the value is a share, and is compared with an even one.
    """
    names = sorted(names, key=_natural)
    even = 1.0 / len(names) if is_histogram and names else None
    if is_histogram:  # without the empty bins at both ends
        columns = [lines.block.column(name) for name in names]
        full = [at for at, column in enumerate(columns) if column.values[column.present].any()]
        names = names[min(full, default=0) : max(full, default=-1) + 1]
    # Evenly spaced over the depth: the first layers alone would hide where it began.
    names = names[:: -(-len(names) // MAX_ROWS)]
    block = lines.block
    present = np.logical_or.reduce([block.column(name).present for name in names])
    rows = np.flatnonzero(present & ~lines.is_gone)
    if not len(rows):
        return None
    edges = np.unique(np.linspace(0, len(rows), min(COLUMNS, len(rows)) + 1).astype(int))
    cells: list[list[float | str | None]] = []
    for name in names:
        column = block.column(name)
        cells.append(_row(column.values[rows], column.present[rows], edges, even))
    labels = [name.removeprefix(prefix) for name in names]
    note = {"note": "log2 of share / even share: blue lower, red higher"} if is_histogram else {}
    return {
        **note,
        "rows": [f"{float(v):g}" for v in labels] if is_histogram else short_names(labels),
        "x": block.step[rows[edges[:-1]]].tolist(),
        "end": int(block.step[rows[-1]]),
        "cells": cells,
    }


def short_names(names: Sequence[str]) -> list[str]:
    """Return names of modules without the words that all of them begin and end with."""
    words = [name.split(".") for name in names]
    fewest = min((len(one) for one in words), default=0)
    start, end = 0, 0
    while start < fewest - 1 and len({one[start] for one in words}) == 1:
        start += 1
    while end < fewest - 1 - start and len({one[-1 - end] for one in words}) == 1:
        end += 1
    return [".".join(one[start : len(one) - end]) for one in words]


def _row(
    values: FloatArray, present: Any, edges: Any, even: float | None
) -> list[float | str | None]:
    if even is not None:
        present = present & (values > 0)
    finite = present & np.isfinite(values)
    sizes = np.abs(values)
    usual = percentiles(sizes[finite], (50,))[0] if finite.any() else 0.0
    usual = usual if even is None else even
    # What is missing counts as usual, so it is never the furthest of its cell.
    sizes = np.where(finite, sizes, usual)
    starts = edges[:-1]
    high, low = (
        _doublings(extreme.reduceat(sizes, starts), usual) for extreme in (np.maximum, np.minimum)
    )
    furthest = np.where(high >= -low, high, low)
    is_bad = np.logical_or.reduceat(present & ~finite, starts)
    is_there = np.logical_or.reduceat(present, starts)
    return [
        "x" if bad else (round(value, 2) if there else None)
        for bad, there, value in zip(
            is_bad.tolist(), is_there.tolist(), furthest.tolist(), strict=True
        )
    ]


def _doublings(sizes: FloatArray, usual: float) -> FloatArray:
    if usual <= 0:
        return np.zeros_like(sizes)
    with np.errstate(divide="ignore", over="ignore"):
        return np.clip(np.log2(sizes / usual), -20.0, 20.0)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts layer.10 after layer.9."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]
