"""What one rank has and the others do not, in the vector that is summed over ranks anyway.

The largest logits, whose mean would hide the one rank where they explode; and which rank computes
longest alone: from the end of an update to the first loss of the next step, in which DDP waits for
no other rank. A sum finds the largest of all ranks, if each value is weighted by a high power of
itself: the mean is then that of the largest. So the vector has the same length in every world.
"""

import time
from collections.abc import Mapping

import torch

from trimtab.core import signals

SECONDS = "seconds"
MAXIMA = (signals.MAX_ATTENTION_LOGIT, signals.MAX_LOGIT, signals.MAX_LOG_Z)
NAMES = (SECONDS, *MAXIMA)
SLOTS = (
    *(f"weight:{name}" for name in NAMES),
    *(f"weighted:{name}" for name in NAMES),
    *("weighted:rank", f"total:{SECONDS}"),
)

POWER = 64
"""Of two ranks whose values differ by 2 % the largest is 0.4 % low, which is the worst."""

LEAST, MOST = 0.3, 3.0
"""What a value may be, in multiples of the largest one before: the weights are 3e-34 to 3e30."""

SLOW_TIMES, SLOW_RECORDS = 1.5, 4
"""A rank is slow that takes 1.5 times as long as the mean of the others in 4 records. Chosen."""


def weigh(values: torch.Tensor, rank: int, before: torch.Tensor | None) -> torch.Tensor:
    """Return what a rank adds to SLOTS for its values, by NAMES; -infinity is not measured.

    `before` is what `largest` gave last; None at first, when all weigh the same.
    """
    is_known = values != -torch.inf
    ratio = torch.ones_like(values)
    if before is not None:
        ratio = torch.where(before > 0, (values / before).clamp(LEAST, MOST), ratio)
    weight = torch.where(is_known, ratio**POWER, 0.0)
    weighted = torch.where(is_known, weight * values, 0.0)
    return torch.cat((weight, weighted, weight[:1] * rank, values[:1]))


def largest(sums: torch.Tensor) -> torch.Tensor:
    """Return the largest value of any rank from the sums of SLOTS, by NAMES; NaN if there is
    none."""
    count = len(NAMES)
    return sums[count : 2 * count] / sums[:count]


def read_maxima(sums: Mapping[str, float]) -> dict[str, float]:
    return {
        name: sums[f"weighted:{name}"] / weight
        for name in MAXIMA
        if (weight := sums.get(f"weight:{name}", 0.0)) != 0.0
    }


class ComputeClock:
    """Measures how long a rank computes before it waits for others; on an accelerator by events."""

    def __init__(self, device: torch.device) -> None:
        self._uses_events = device.type == "cuda"
        self._marks: list[float | torch.cuda.Event] = []
        self._earlier: list[float | torch.cuda.Event] = []

    @property
    def is_running(self) -> bool:
        """Whether the loss of a step that is measured has not come yet."""
        return len(self._marks) == 1

    def begin(self) -> None:
        self._earlier, self._marks = self._marks, [self._now()]

    def end(self) -> None:
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
        weight, total = sums.get(f"weight:{SECONDS}", 0.0), sums.get(f"total:{SECONDS}", 0.0)
        if self._world == 1 or not weight > 0 or not total > 0:
            return None
        slowest = sums[f"weighted:{SECONDS}"] / weight
        rank = round(sums["weighted:rank"] / weight)
        times = slowest * (self._world - 1) / max(total - slowest, 1e-9)
        is_same, self._rank = rank == self._rank, rank
        self._count = (self._count if is_same else 0) + 1 if times > SLOW_TIMES else 0
        if self._count < SLOW_RECORDS or rank in self._named:
            return None
        self._named.add(rank)
        return rank, times
