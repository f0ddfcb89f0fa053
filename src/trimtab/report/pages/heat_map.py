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
    usual = percentiles(np.abs(values[finite]), (50,))[0] if finite.any() else 0.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.log2(np.abs(values) / usual) if usual > 0 else np.zeros_like(values)
    ratios = np.clip(np.where(finite, ratios, 0.0), -20.0, 20.0)
    starts = edges[:-1]
    high, low = np.maximum.reduceat(ratios, starts), np.minimum.reduceat(ratios, starts)
    furthest = np.where(high >= -low, high, low)
    is_bad = np.add.reduceat((present & ~finite).astype(int), starts) > 0
    is_there = np.add.reduceat(present.astype(int), starts) > 0
    return [
        "x" if bad else (round(value, 2) if there else None)
        for bad, there, value in zip(
            is_bad.tolist(), is_there.tolist(), furthest.tolist(), strict=True
        )
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts layer.10 after layer.9."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]
