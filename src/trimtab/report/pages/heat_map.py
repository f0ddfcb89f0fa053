"""Signals of many layers as a heat map: one row per layer, red above its usual value, blue below.

A cell holds the base-2 logarithm of the value over the layer's median, of the record in which it is
furthest from 0: a jump of one record stays visible. A value that is not finite is its own colour.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.report.pages.axis import percentiles
from trimtab.report.pages.line import RunLines

COLUMNS = 400
MAX_ROWS = 128
"""Layers drawn; of more, every second or third one."""


def heat_map(lines: RunLines, names: Sequence[str], prefix: str) -> dict[str, Any] | None:
    """The layers of one family as JSON values; None if none has a finite value."""
    names = sorted(names, key=_natural)
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
        cells.append(_row(column.values[rows], column.present[rows], edges))
    return {
        "rows": [name.removeprefix(prefix) for name in names],
        "x": block.step[rows[edges[:-1]]].tolist(),
        "end": int(block.step[rows[-1]]),
        "cells": cells,
    }


def _row(values: FloatArray, present: Any, edges: Any) -> list[float | str | None]:
    finite = present & np.isfinite(values)
    sizes = np.abs(values)
    usual = percentiles(sizes[finite], (50,))[0] if finite.any() else 0.0
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
    """Sorts layer.10 after layer.9."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]
