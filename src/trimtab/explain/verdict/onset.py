"""Onset: where the loss began to leave its trend, searched in the records before an alarm.

An alarm comes when the evidence is enough, and a slow rise begins long before. A level that is
measured on records after the onset hides what the incident did: dating decides more about a verdict
than anything else, and too early by five records costs less than too late by five.
"""

from collections.abc import Sequence

import numpy as np

from trimtab.explain.verdict.reference import MIN_BEFORE, reference_of
from trimtab.explain.verdict.rows import Losses, Row, newest_attempt

WIDTHS = (64, 128, 256)
"""Records before an alarm that are searched; more if the onset seems to lie at their beginning."""

EDGE = 8
"""An onset in the first 1/8 of them may lie before them."""

MIN_REFERENCE = 12
"""Records that must lie before those that are searched."""

DRIFT, LOWEST, HIGHEST = 0.75, -3.0, 5.0
"""What a record must lie above its trend to speak for the rise, in deviations, and the bounds of
what a single one says. Chosen on drawn onsets."""

NEARLY = 2.0
"""How much less evidence counts as the same."""

CLEAR_SHARE = 0.05
"""The mean rise of the records before a detector's onset, as a fraction of the rise at the alarm,
that makes them part of it. Chosen: a level that waves a little before a spike is no beginning."""

MIN_TREND = 32
"""With fewer records before those that are searched, a loss that stops falling has not begun to
rise: the trend of so few is not known. Chosen."""

LEAST = 6.0
"""Sum of what speaks for a rise under which there is none. Source: the sums of healthy runs."""


def date_onset(rows: Sequence[Row], latest: int) -> int:
    """Return the place of the first row of a rise; `latest` if nothing before it belongs to it.

    The last of the rows is that of the alarm; `latest` is where its detector saw the beginning.
    """
    begin = len(rows) - len(newest_attempt(rows, 0))
    if latest <= begin:
        return latest  # before a restart, or with it: no record of this attempt is earlier
    earliest = min(begin + MIN_REFERENCE, latest)
    first = latest
    for width in WIDTHS:
        start = max(latest - width, earliest)
        first = _search(rows[begin:], start - begin, latest - begin) + begin
        if first > start + width // EDGE or start == earliest:
            break
    return first


def _search(rows: Sequence[Row], start: int, latest: int) -> int:
    reference = reference_of(rows[:start], rows[start].step, rows[0].step, None)
    later = [at for at, row in enumerate(rows) if at >= start and row.is_finite]
    if reference.records < MIN_BEFORE or not later:
        return latest
    losses = Losses.of([rows[at] for at in later])
    values = reference.to_scale(losses.loss)
    expected = reference.expected(reference.log_steps(losses.step))
    if reference.records < MIN_TREND:
        expected = np.maximum(expected, reference.level)
    above = np.clip((values - expected) / reference.noise, LOWEST, HIGHEST) - DRIFT
    evidence = np.cumsum(above[::-1])[::-1]  # of all records from each on
    best = float(evidence.max())
    if best <= LEAST:
        return latest
    # The last record from which on nearly as much speaks for a rise: noise before it adds little.
    first = int(np.flatnonzero(evidence >= best - NEARLY)[-1])
    rise, before = values - expected, sum(at < latest for at in later)
    while first < before and rise[first:before].mean() < CLEAR_SHARE * rise.max():
        first += 1
    return later[first] if first < before else latest
