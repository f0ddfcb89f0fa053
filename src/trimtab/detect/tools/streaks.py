"""Streaks: where a condition has held for a number of records in a row."""

import numpy as np

from trimtab.core.block import BoolArray, IntArray


def reached(flags: BoolArray, known: int, length: int) -> tuple[IntArray, int]:
    """The places at which a streak reaches a length, and the length of the last streak.

    `known` is the length of the streak that the flags continue.
    """
    bounds = np.concatenate(([-known - 1], np.flatnonzero(~flags), [len(flags)]))
    places = bounds[:-1][np.diff(bounds) > length] + length
    return places[places >= 0], int(bounds[-1] - bounds[-2] - 1)
