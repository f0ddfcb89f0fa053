"""Numbers of each rank, in slots of its own of the vector that is summed over ranks anyway.

They are the largest logits, whose mean would hide the one rank where they explode, and how long
the rank computes alone: from the end of an update to the first loss of the next step, in which DDP
waits for no other rank. A rank that takes longer than the others is named in log and journal.
"""

import statistics
import time
from collections.abc import Mapping

import torch

from trimtab.core import signals

SECONDS = "seconds"
MAXIMA = (signals.MAX_ATTENTION_LOGIT, signals.MAX_LOGIT, signals.MAX_LOG_Z)
BY_RANK = (SECONDS, *MAXIMA)

MAX_RANKS = 1024
"""Of more ranks there are only sums: the vector would have more than 16 kB at every step."""

SLOW_TIMES, SLOW_RECORDS = 1.5, 4
"""A rank is slow that takes 1.5 times as long as the median of the others in 4 records. Chosen."""


def rank_slots(world: int) -> tuple[str, ...]:
    """Return the slots of all ranks; none for one rank, and for very many."""
    ranks = range(world) if 1 < world <= MAX_RANKS else ()
    return tuple(_slot(what, rank) for rank in ranks for what in BY_RANK)


def _slot(what: str, rank: int) -> str:
    return f"rank {rank}:{what}"


def read_maxima(sums: Mapping[str, float], world: int) -> dict[str, float]:
    """Return the largest logits of any rank; NaN if one has NaN."""
    found = {}
    for name in MAXIMA:
        values = [sums[slot] for rank in range(world) if (slot := _slot(name, rank)) in sums]
        if any(value > -torch.inf or value != value for value in values):
            found[name] = max(values, key=lambda value: (value != value, value))
    return found


class AloneClock:
    """Measures how long a rank computes alone; on an accelerator by its own clock."""

    def __init__(self, device: torch.device) -> None:
        self._uses_events = device.type == "cuda"
        self._marks: list[float | torch.cuda.Event] = []
        self._earlier: list[float | torch.cuda.Event] = []

    def begin(self) -> None:
        """An update has ended, and the next step is measured."""
        self._earlier, self._marks = self._marks, [self._now()]

    @property
    def is_running(self) -> bool:
        """Whether the loss of a step that is measured has not come yet."""
        return len(self._marks) == 1

    def end(self) -> None:
        """The first loss of the step is there."""
        self._marks.append(self._now())

    def seconds(self) -> float:
        """Return the time in the step that was measured before this one: the device may be behind
        the host by a step, but not by that many. 0 if it is not known."""
        if len(self._earlier) < 2:
            return 0.0
        began, ended = self._earlier
        if isinstance(began, float) or isinstance(ended, float):
            return float(ended) - float(began)  # type: ignore[arg-type]
        return began.elapsed_time(ended) / 1000 if ended.query() else 0.0

    def _now(self) -> "float | torch.cuda.Event":
        if not self._uses_events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class SlowRank:
    """Names a rank that takes longer than the others, once; on the first rank."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._rank, self._count = -1, 0
        self._named: set[int] = set()

    def read(self, sums: Mapping[str, float]) -> tuple[int, float] | None:
        """Return a rank that is slow, and how many times as long it takes; None if none is new."""
        seconds = {rank: sums.get(_slot(SECONDS, rank), 0.0) for rank in range(self._world)}
        known = {rank: value for rank, value in seconds.items() if value > 0}
        if len(known) < 2:
            return None
        rank = max(known, key=lambda one: known[one])
        times = known[rank] / statistics.median(v for one, v in known.items() if one != rank)
        is_same, self._rank = rank == self._rank, rank
        self._count = (self._count if is_same else 0) + 1 if times > SLOW_TIMES else 0
        if self._count < SLOW_RECORDS or rank in self._named:
            return None
        self._named.add(rank)
        return rank, times
