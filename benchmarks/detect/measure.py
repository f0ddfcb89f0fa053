"""What each contender found in the public runs, when, and what it raised for nothing."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.kit.public_runs import RealRun

from benchmarks.detect.injections import LOSS_ONLY, WITH_NORM, Fork, injected
from benchmarks.detect.intervals import poisson_interval
from benchmarks.detect.ours import JudgeContender
from benchmarks.detect.peers import ArrayRule
from benchmarks.scoring import QUIET_RECORDS, Score, chance_recall, onset_rows, score
from trimtab.core.block import Block, BoolArray
from trimtab.core.signals import LOSS

Contender = ArrayRule | JudgeContender
"""What has a name, says by whose code it ran, and at which rows of a run it raises an alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One contender on one real run."""

    run: RealRun
    score: Score
    chance: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkResult:
    """One contender on one injected fault."""

    kind: str
    variant: str
    delay: int | None
    """Rows from the start of the fault to the alarm that found it."""
    is_early: bool
    """Whether that alarm came before the peak."""
    warned: int | None
    """Rows from the start of the fault to the first warning about the loss, or alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One contender on the material of one split."""

    name: str
    split: str
    runs: list[RunResult]
    forks: list[ForkResult] = field(default_factory=list)

    @property
    def healthy(self) -> list[RunResult]:
        return [result for result in self.runs if result.run.label == "healthy"]

    @property
    def num_false(self) -> int:
        return sum(result.score.num_false for result in self.healthy)

    @property
    def num_healthy_points(self) -> int:
        return sum(result.score.num_records for result in self.healthy)


def measure(contender: Contender, split: str, runs: Iterable[RealRun]) -> Result:
    """Let one contender watch every run."""
    results = []
    for run in runs:
        alarms = nonfinite_counts(run.block, contender.watch(run.block))
        rows = np.flatnonzero(alarms).tolist()
        results.append(RunResult(run=run, score=score(run, rows), chance=chance_recall(run, rows)))
    return Result(name=contender.name, split=split, runs=results)


def measure_faults(judge: JudgeContender, runs: Sequence[RealRun], points: int) -> list[ForkResult]:
    """Let the judge watch the faults that are injected into runs."""
    results = []
    for variant in (WITH_NORM, LOSS_ONLY):
        for block, forks in injected(runs, variant, points):
            alarms, tails = judge.watch_forks(block, forks)
            clean = nonfinite_counts(block, alarms)
            for fork, (alarmed, warned) in zip(forks, tails, strict=True):
                found = first_onset(clean, nonfinite_counts(fork.tail, alarmed), fork)
                window = warned[fork.start : fork.last + 1]
                one = ForkResult(
                    kind=fork.kind,
                    variant=variant,
                    delay=None if found is None else found - fork.start,
                    is_early=found is not None and fork.peak is not None and found < fork.peak,
                    warned=int(np.argmax(window)) if window.any() else None,
                )
                results.append(one)
    return results


def nonfinite_counts(block: Block, flags: BoolArray) -> BoolArray:
    """The alarms, with one at each loss that turns non-finite: that much is plain to everyone."""
    bad = block.column(LOSS).nonfinite
    turned = bad & ~np.concatenate(([False], bad[:-1]))
    return flags | turned


def first_onset(clean: BoolArray, tail: BoolArray, fork: Fork) -> int | None:
    """The row of the tail with the first new alarm in the fault's window."""
    lead = min(fork.row, QUIET_RECORDS)
    flags = np.concatenate((clean[fork.row - lead : fork.row], tail))
    rows: Sequence[int] = (np.flatnonzero(flags) - lead).tolist()
    return next((row for row in onset_rows(rows) if fork.start <= row <= fork.last), None)


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
