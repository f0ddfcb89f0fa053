"""Contenders over the material: what each found, when, and what it raised for nothing."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.kit.public_runs import RealRun

from benchmarks.detect.contenders import Contender, Fork
from benchmarks.detect.material import Sitting
from benchmarks.scoring import QUIET_RECORDS, Score, chance_recall, onset_rows, score
from trimtab.core.block import Block, BoolArray
from trimtab.core.signals import LOSS


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
    is_early: bool | None
    """Whether that alarm came before the peak; none if the fault has no peak."""
    by_chance: bool
    """Whether the same rows of the run without the fault hold a new alarm too."""
    warned: int | None = None
    """Rows from the start of the fault to the first warning about the loss, or alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One contender on the material of one split."""

    name: str
    source: str
    split: str
    runs: list[RunResult] = field(default_factory=list)
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


def measure(contender: Contender, split: str, material: Iterable[Sitting]) -> Result:
    """Let one contender watch everything."""
    result = Result(name=contender.name, source=contender.source, split=split)
    for sitting in material:
        alarms = contender.watch(sitting.block, sitting.forks)
        clean = nonfinite_counts(sitting.block, alarms.run)
        if sitting.is_real:
            rows = np.flatnonzero(clean).tolist()
            result.runs.append(
                RunResult(
                    run=sitting.run,
                    score=score(sitting.run, rows),
                    chance=chance_recall(sitting.run, rows),
                )
            )
        warned = alarms.warned or alarms.forks
        for fork, flags, warnings in zip(sitting.forks, alarms.forks, warned, strict=True):
            tail = nonfinite_counts(fork.tail, flags)
            found = fork_result(fork, sitting.variant, clean, tail)
            window = warnings[fork.start : fork.last + 1]
            first = int(np.argmax(window)) if window.any() else None
            result.forks.append(dataclasses.replace(found, warned=first))
    return result


def nonfinite_counts(block: Block, flags: BoolArray) -> BoolArray:
    """The alarms, with one at each loss that turns non-finite: that much is plain to everyone."""
    bad = block.column(LOSS).nonfinite
    turned = bad & ~np.concatenate(([False], bad[:-1]))
    return flags | turned


def fork_result(fork: Fork, variant: str, clean: BoolArray, tail: BoolArray) -> ForkResult:
    """Score the alarms over a fork against its fault, and the run's own over the same rows."""
    found = first_onset(clean, tail, fork)
    unchanged = clean[fork.row : fork.row + len(tail)]
    return ForkResult(
        kind=fork.kind,
        variant=variant,
        delay=None if found is None else found - fork.start,
        is_early=None if fork.peak is None else found is not None and found < fork.peak,
        by_chance=first_onset(clean, unchanged, fork) is not None,
    )


def first_onset(clean: BoolArray, tail: BoolArray, fork: Fork) -> int | None:
    """The row of the tail with the first new alarm in the fault's window."""
    lead = min(fork.row, QUIET_RECORDS)
    flags = np.concatenate((clean[fork.row - lead : fork.row], tail))
    rows: Sequence[int] = (np.flatnonzero(flags) - lead).tolist()
    return next((row for row in onset_rows(rows) if fork.start <= row <= fork.last), None)
