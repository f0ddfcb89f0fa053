"""Results in numbers: rates, recalls and delays."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.detect.intervals import poisson_interval
from benchmarks.detect.measure import Result, RunResult

CONFIDENCES = ("high", "medium")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """How many labelled events were found."""

    found: int
    total: int
    delays: tuple[int, ...]
    """Of what was found, in logged points from its start; negative is before the labelled start."""

    def __str__(self) -> str:
        share = self.found / self.total if self.total else float("nan")
        return f"{self.found} of {self.total} ({100 * share:.0f} %)"


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


def event_recall(result: Result, confidences: Sequence[str] = CONFIDENCES) -> Recall:
    """The labelled events of the real runs, by confidence of their labels."""
    events = [
        (int(np.searchsorted(item.run.block.step, label.start)), row)
        for item in result.runs
        for label, row in item.score.found
        if label.confidence in confidences
    ]
    return Recall(
        found=sum(row is not None for _, row in events),
        total=len(events),
        delays=tuple(row - start for start, row in events if row is not None),
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


def real_row(result: Result) -> tuple[str, ...]:
    """The row of a contender in the table of the public runs."""
    both = event_recall(result)
    early, spikes = llama_early(result)
    # Chance is measured over all events of a run: its windows do not know their confidence.
    chance = [share for item in result.runs for share in item.chance]
    # Like the runs that trimtab is for.
    llm = [one for one in result.healthy if one.run.is_every_step and "llm" in one.run.tags]
    delays = f"{statistics.median(both.delays):g} / {max(both.delays)}" if both.delays else "-"
    return (
        result.name,
        false_rate(result.healthy),
        false_rate(llm),
        *(str(event_recall(result, (confidence,))) for confidence in CONFIDENCES),
        f"{100 * statistics.fmean(chance or [0.0]):.0f} %",
        delays,
        f"{early} of {spikes}",
    )
