"""Logs of several ranks in one file."""

import numpy as np

from trimtab.core.block import IntArray

_MAX_CHANGES = 64
"""How often a different rank may take over the printing, as Megatron's last rank does when a
restart has more ranks. The limit keeps a hostile file from taking forever."""


def rows_of_others(ranks: IntArray) -> IntArray:
    """Return the records to leave out so that at any time only one rank speaks.

    Where several ranks print records, each has its own view of the step, and their lines come in
    no order. The rank with the most records is kept, those that fall into its time are not; and so
    on in what lies before and after.
    """
    others = np.zeros(len(ranks), dtype=np.bool_)
    parts = [np.arange(len(ranks))]
    for _ in range(_MAX_CHANGES):
        if not parts:
            break
        rows = parts.pop()
        found, counts = np.unique(ranks[rows], return_counts=True)
        if len(found) < 2:
            continue
        speaker = found[np.argmax(counts)]
        spoken = np.flatnonzero(ranks[rows] == speaker)
        first, end = spoken[0], spoken[-1] + 1
        within = np.unique(ranks[rows[first:end]])
        other = np.isin(ranks[rows], within[within != speaker])
        others[rows[other]] = True
        parts += [rows[:first][~other[:first]], rows[end:][~other[end:]]]
    return np.flatnonzero(others)
