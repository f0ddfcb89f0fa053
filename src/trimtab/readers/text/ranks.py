"""Whose line it is: logs of several ranks in one file."""

import re

import numpy as np

from trimtab.core.block import IntArray

_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,6})\]|(\d{1,6}): )")
"""How torchrun and `srun --label` begin a line."""

_NO_RANK = -1

_MOST_CHANGES = 64
"""How often another rank may take over the printing, as Megatron's last rank does when a restart
has more ranks. More are not looked for, so that a hostile file cannot take for ever."""


def rank_of(line: str) -> int:
    """The rank that printed a line; -1 if it does not say."""
    found = _RANK.match(line)
    return int(found[1] or found[2]) if found else _NO_RANK


def rows_of_others(ranks: IntArray) -> IntArray:
    """The records to leave out so that at any time only one rank speaks.

    Where several ranks print records, each has its own view of the step, and their lines come in
    no order. The rank with the most records is kept from its first record to its last, and so on
    in what lies before and after.
    """
    others = np.zeros(len(ranks), dtype=np.bool_)
    parts = [(0, len(ranks))]
    for _ in range(_MOST_CHANGES):
        if not parts:
            break
        start, stop = parts.pop()
        part = ranks[start:stop]
        found, counts = np.unique(part, return_counts=True)
        if len(found) < 2:
            continue
        speaker = found[np.argmax(counts)]
        rows = np.flatnonzero(part == speaker)
        first, end = rows[0], rows[-1] + 1
        others[start + first : start + end] = part[first:end] != speaker
        parts += [(start, start + first), (start + end, stop)]
    return np.flatnonzero(others)
