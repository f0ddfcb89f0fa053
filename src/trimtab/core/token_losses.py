"""The histogram of token losses: 32 bins of half an octave, and whether it has a second mode.

A batch of a few odd sequences raises the mean a little and puts their tokens far to the right of
all others; a learning rate that is too high moves the whole histogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block, FloatArray
from trimtab.core.signals import TOKEN_LOSS_SHARE

NUM_BINS, BINS_PER_OCTAVE, FIRST_OCTAVE = 32, 2, -9
"""From 2^-9 = 0.002 to 2^7 = 128 nats: a token of a certain 1 in 500 to more than any softmax over
a vocabulary gives. The first and the last bin take what is beyond."""

EDGES = tuple(2.0 ** (FIRST_OCTAVE + bin_index / BINS_PER_OCTAVE) for bin_index in range(NUM_BINS))
NAMES = tuple(f"{TOKEN_LOSS_SHARE}{edge:07.3f}" for edge in EDGES)

MIN_SHARE = 0.01
"""Tokens that a second mode must have: one sequence in a hundred."""

MIN_TIMES = 4.0
"""How many times the usual share of the same losses that must be."""

VALLEY = 0.7
"""The lowest bin between two modes is at most this share of the lower one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondMode:
    """Losses far from those of most tokens."""

    step: int
    first: float
    """The loss at the middle of the main mode, in nats."""
    loss: float
    """The loss at the middle of the second mode."""
    lowest: float
    """Where it begins."""
    share: float
    """The share of the tokens in it."""
    usual_share: float
    """The share of the tokens above `lowest` before the incident."""


def shares(counts: Sequence[float]) -> dict[str, float]:
    """Return the signals of a histogram; none without tokens."""
    total = sum(counts)
    return {} if not total else dict(zip(NAMES, (n / total for n in counts), strict=True))


def find_second_mode(block: Block, onset_row: int, last_row: int) -> SecondMode | None:
    """Return the second mode of the token losses in an incident, the largest of its records."""
    column = block.column(NAMES[0])
    rows = np.flatnonzero(column.present)
    before, during = rows[rows < onset_row][-16:], rows[(rows >= onset_row) & (rows <= last_row)]
    if not len(before):
        return None
    usual = np.median([_histogram(block, row) for row in before], axis=0)
    found = (_second_mode(_histogram(block, row), usual, int(block.step[row])) for row in during)
    return max((mode for mode in found if mode), key=lambda mode: mode.share, default=None)


def _histogram(block: Block, row: int) -> FloatArray:
    return np.array([block.column(name).values[row] for name in NAMES])


def _second_mode(counts: FloatArray, usual: FloatArray, step: int) -> SecondMode | None:
    main = int(np.argmax(counts))
    for valley in range(main + 1, NUM_BINS - 1):
        share, usual_share = float(counts[valley:].sum()), float(usual[valley:].sum())
        peak = valley + int(np.argmax(counts[valley:]))
        is_mode = peak > valley and counts[valley] <= VALLEY * counts[peak]
        if is_mode and share >= max(MIN_SHARE, MIN_TIMES * usual_share):
            return SecondMode(
                step=step,
                first=_middle(main),
                loss=_middle(peak),
                lowest=EDGES[valley],
                share=share,
                usual_share=usual_share,
            )
    return None


def _middle(bin_index: int) -> float:
    return float(EDGES[bin_index] * 2 ** (0.5 / BINS_PER_OCTAVE))
