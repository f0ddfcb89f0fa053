"""Means over a log interval: recognises them and lowers the quality of the signal."""

from dataclasses import replace

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.signals import Quality
from trimtab.readers.aliases import STEP, name_columns
from trimtab.readers.table import Table


def window_lengths(table: Table, name: str, step: str = STEP) -> FloatArray:
    """For each row with a value in this column: the steps since the last such row.

    The first row, and the first after the step went back, get the usual length.
    """
    steps = table.column(step).values[table.column(name).present]
    lengths = np.diff(steps, prepend=np.nan)
    known = lengths > 0  # false for NaN too
    return np.where(known, lengths, np.median(lengths[known]) if known.any() else 1.0)


def mark_window_means(table: Table, *names: str, step: str = STEP) -> None:
    """Say that these columns hold means over the log interval, if that is longer than a step."""
    for name in names:
        lengths = window_lengths(table, name, step)
        if len(lengths) and np.median(lengths) > 1:
            mark_quality(table, name, Quality.WINDOW_MEAN)


def mark_quality(table: Table, name: str, quality: Quality) -> None:
    """Say that a column deserves no more trust than this."""
    known = table.meanings.get(name) or name_columns([name]).aliases[name]
    table.meanings[name] = replace(known, quality=min(quality, known.quality))
