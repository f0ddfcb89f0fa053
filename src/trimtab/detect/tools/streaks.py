"""Streaks: where something has been true so many records in a row."""

import numpy as np

from trimtab.core.block import BoolArray, IntArray


def reached(flags: BoolArray, known: int, length: int) -> tuple[IntArray, int]:
    """The places at which a streak reaches a length, and how long the last one is now.

    `known` is how long the streak was that the flags go on from.
    """
    bounds = np.concatenate(([-known - 1], np.flatnonzero(~flags), [len(flags)]))
    places = bounds[:-1][np.diff(bounds) > length] + length
    return places[places >= 0], int(bounds[-1] - bounds[-2] - 1)
