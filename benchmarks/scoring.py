"""Strict scoring of alarms against labels.

An event is found if a *new* alarm (no alarm in the 3 records before it) falls between 10 steps (or
2 records of a thinned log) before its start and its end. An episode is a group of alarms at most
3 records apart; it is false if it overlaps no spike, divergence, NaN, restart or low-confidence
event. Blips are not events: an alarm on one is false.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.kit.public_runs import Label, RealRun

QUIET_RECORDS = 3
TROUBLE = ("spike", "divergence", "nan")
RESTART_RECORDS = 100
CHANCE_MOVES = 20
"""Number of random positions of each event's window for measuring recall by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One run's alarms against its labels."""

    num_records: int
    false: tuple[tuple[int, int], ...]
    """First and last row of each false episode."""
    found: tuple[tuple[Label, int | None], ...]
    """Each counted event, with the row of the alarm that found it."""

    @property
    def num_false(self) -> int:
        return len(self.false)


def score(run: RealRun, alarm_rows: Sequence[int]) -> Score:
    """Score the alarms of one detector on one run."""
    rows = sorted(set(alarm_rows))
    onsets = onset_rows(rows)
    zones = excused(run)
    false = tuple(
        episode
        for episode in episodes(rows)
        if not any(episode[0] <= last and episode[1] >= first for first, last in zones)
    )
    found = []
    for label in counted(run):
        first, last = zone(run, label)
        hits = [row for row in onsets if first <= row <= last]
        found.append((label, hits[0] if hits else None))
    return Score(num_records=len(run.block), false=false, found=tuple(found))


def onset_rows(rows: Sequence[int]) -> list[int]:
    """The new alarms among sorted ones: those with no alarm shortly before them."""
    return [row for at, row in enumerate(rows) if at == 0 or row - rows[at - 1] > QUIET_RECORDS]


def chance_recall(run: RealRun, alarm_rows: Sequence[int], seed: int = 0) -> list[float]:
    """For each counted event, how often a window of its length is hit where there is no event.

    An event is left out if the run has no such place.
    """
    draw = np.random.default_rng(seed)
    onsets = np.zeros(len(run.block) + 1, dtype=np.int64)
    onsets[np.asarray(onset_rows(sorted(set(alarm_rows))), dtype=np.int64) + 1] = 1
    onsets_before = np.cumsum(onsets)
    busy = np.zeros(len(run.block) + 1, dtype=np.int64)
    for first, last in excused(run):
        busy[max(first, 0) + 1 : last + 2] = 1
    busy_before = np.cumsum(busy)
    shares = []
    for label in counted(run):
        first, last = zone(run, label)
        width = last - first + 1
        starts = np.arange(max(len(run.block) - width + 1, 0))
        free = starts[busy_before[starts + width] == busy_before[starts]]
        if len(free):
            moved = draw.choice(free, CHANCE_MOVES)
            shares.append(float((onsets_before[moved + width] > onsets_before[moved]).mean()))
    return shares


def counted(run: RealRun) -> list[Label]:
    """The labelled events that a detector must find."""
    return [
        label
        for label in run.labels
        if label.kind in TROUBLE and label.confidence in ("high", "medium")
    ]


def excused(run: RealRun) -> list[tuple[int, int]]:
    """The zones in which an alarm is not false."""
    return [
        zone(run, label)
        for label in run.labels
        if label.kind in (*TROUBLE, "restart") or label.confidence == "low"
    ]


def zone(run: RealRun, label: Label) -> tuple[int, int]:
    """The rows in which an alarm belongs to the event."""
    steps = run.block.step
    early = 10 if run.is_every_step else 0
    first = int(np.searchsorted(steps, label.start - early)) - (0 if early else 2)
    last = int(np.searchsorted(steps, label.end, side="right")) - 1
    if label.kind == "restart":
        return first - 2, last + RESTART_RECORDS
    return max(first, 0), max(last, first)


def episodes(rows: Sequence[int]) -> list[tuple[int, int]]:
    """First and last row of each group of sorted alarms."""
    groups: list[tuple[int, int]] = []
    for row in rows:
        if groups and row - groups[-1][1] <= QUIET_RECORDS:
            groups[-1] = (groups[-1][0], row)
        else:
            groups.append((row, row))
    return groups
