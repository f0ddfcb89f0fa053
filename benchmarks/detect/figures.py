"""Results in numbers: rates, recalls and delays, as the tables and the checks read them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.detect.intervals import poisson_interval
from benchmarks.detect.measure import ForkResult, Result, RunResult

CONFIDENCES = ("high", "medium")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """How much was found, and how much the same windows hold without a fault."""

    found: int
    total: int
    chance: float
    """A share."""
    delays: tuple[int, ...]
    """Of what was found, in logged points from its start; negative is before the labelled start."""
    num_early: int | None
    """Found before the peak; none if there are no peaks."""
    warnings: tuple[int, ...] = ()
    """As delays, to the first warning or alarm."""

    @property
    def share(self) -> float:
        return self.found / self.total if self.total else float("nan")

    @property
    def delay(self) -> str:
        if not self.delays:
            return "-"
        return f"{statistics.median(self.delays):g} / {max(self.delays)}"


def false_rate(results: Sequence[RunResult]) -> str:
    return rate_of(
        sum(result.score.num_false for result in results),
        sum(result.score.num_records for result in results),
    )


def rate_of(count: int, points: int) -> str:
    """False episodes: count, per 10,000 points, and the interval of the rate."""
    if not points:
        return "-"
    low, high = (1e4 * bound / points for bound in poisson_interval(count))
    return f"{count:,}; {1e4 * count / points:.2f} [{low:.2f}, {high:.2f}]"


def every_step_llm(results: Sequence[RunResult]) -> list[RunResult]:
    """The runs that are like the ones trimtab is for."""
    return [result for result in results if result.run.is_every_step and "llm" in result.run.tags]


def event_recall(result: Result, confidences: Sequence[str] = CONFIDENCES) -> Recall:
    """The labelled events of the real runs, by confidence of their labels."""
    events = _events(result, confidences)
    # Chance is measured over all events of a run: its windows do not know their confidence.
    chance = [share for item in result.runs for share in item.chance]
    return Recall(
        found=sum(row is not None for _, _, row in events),
        total=len(events),
        chance=statistics.fmean(chance) if chance else 0.0,
        delays=tuple(row - start for _, start, row in events if row is not None),
        num_early=None,
    )


def llama_early(result: Result) -> tuple[int, int]:
    """The spikes of the Llama-3.1-8B runs: alarms before the peak, and how many spikes."""
    early = total = 0
    for item in result.runs:
        if "8B" in item.run.tags:
            for label, row in item.score.found:
                total += 1
                early += row is not None and int(item.run.block.step[row]) < label.peak
    return early, total


def fault_recall(result: Result, kind: str, variant: str) -> Recall:
    return recall_of(
        [fork for fork in result.forks if fork.kind == kind and fork.variant == variant]
    )


def recall_of(faults: Sequence[ForkResult]) -> Recall:
    """Faults whose start is known to the row."""
    early = [fork.is_early for fork in faults if fork.is_early is not None]
    return Recall(
        found=sum(fork.delay is not None for fork in faults),
        total=len(faults),
        chance=statistics.fmean(fork.by_chance for fork in faults) if faults else 0.0,
        delays=tuple(fork.delay for fork in faults if fork.delay is not None),
        num_early=sum(early) if early else None,
        warnings=tuple(fork.warned for fork in faults if fork.warned is not None),
    )


def _events(result: Result, confidences: Sequence[str]) -> list[tuple[RunResult, int, int | None]]:
    """Run, row of the labelled start, row of the alarm."""
    return [
        (item, int(np.searchsorted(item.run.block.step, label.start)), row)
        for item in result.runs
        for label, row in item.score.found
        if label.confidence in confidences
    ]
