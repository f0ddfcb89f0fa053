"""Strict scoring of alarms against labels.

An event is found if a *new* alarm (no alarm in the 3 records before it) falls between 10 steps (or
2 records of a thinned log) before its start and its end. An episode is a group of alarms at most
3 records apart; it is false if it touches no spike, divergence, NaN, restart or low-confidence
event. Blips are no events: an alarm on one is false.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.real_runs import Label, RealRun

QUIET_RECORDS = 3
TROUBLE = ("spike", "divergence", "nan")
RESTART_RECORDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One run's alarms against its labels."""

    num_records: int
    num_false: int
    found: tuple[tuple[Label, int | None], ...]
    """Each event that counts, with the row of the alarm that found it."""


def score(run: RealRun, alarm_rows: Sequence[int]) -> Score:
    """Score the alarms of one detector on one run."""
    rows = sorted(set(alarm_rows))
    onsets = [row for at, row in enumerate(rows) if at == 0 or row - rows[at - 1] > QUIET_RECORDS]
    zones = [_zone(run, label) for label in run.labels if _is_excused(label)]
    false = [
        episode
        for episode in _episodes(rows)
        if not any(episode[0] <= zone[1] and episode[1] >= zone[0] for zone in zones)
    ]
    found = []
    for label in run.labels:
        if label.kind in TROUBLE and label.confidence in ("high", "medium"):
            first, last = _zone(run, label)
            hits = [row for row in onsets if first <= row <= last]
            found.append((label, hits[0] if hits else None))
    return Score(num_records=len(run.block), num_false=len(false), found=tuple(found))


def _is_excused(label: Label) -> bool:
    return label.kind in (*TROUBLE, "restart") or label.confidence == "low"


def _zone(run: RealRun, label: Label) -> tuple[int, int]:
    """The rows in which an alarm belongs to the event."""
    steps = run.block.step
    early = 10 if run.is_every_step else 0
    first = int(np.searchsorted(steps, label.start - early)) - (0 if early else 2)
    last = int(np.searchsorted(steps, label.end, side="right")) - 1
    if label.kind == "restart":
        return first - 2, last + RESTART_RECORDS
    return max(first, 0), max(last, first)


def _episodes(rows: Sequence[int]) -> list[tuple[int, int]]:
    episodes: list[tuple[int, int]] = []
    for row in rows:
        if episodes and row - episodes[-1][1] <= QUIET_RECORDS:
            episodes[-1] = (episodes[-1][0], row)
        else:
            episodes.append((row, row))
    return episodes
