"""The lab's runs: a fault is found by a new alarm from its onset on; without one, alarms are false.

Chance is what the run's clean twin, which is the same run up to the onset, gives in those rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.kit.public_runs import SPLITS

from benchmarks.detect.contenders import Contender
from benchmarks.detect.figures import Recall, rate_of, recall_of
from benchmarks.detect.measure import ForkResult, nonfinite_counts
from benchmarks.detect.suite import LabRun
from benchmarks.results import table
from benchmarks.scoring import episodes, onset_rows

GRADES = ("severe", "mild")


@dataclass(slots=True, kw_only=True)
class SuiteResult:
    """One contender on the runs of a suite."""

    name: str
    num_false: dict[str, int] = field(default_factory=dict)
    """Episodes on runs without a fault, by split."""
    num_points: dict[str, int] = field(default_factory=dict)
    faults: dict[str, list[ForkResult]] = field(default_factory=dict)
    """By split; the variant is the grade."""


def measure_suite(contender: Contender, runs: Sequence[LabRun]) -> SuiteResult:
    """Let one contender watch every run."""
    result = SuiteResult(name=contender.name)
    rows = {run.name: _alarm_rows(contender, run) for run in runs}
    for run in runs:
        if run.onset is None:
            false = len(episodes(rows[run.name]))
            result.num_false[run.split] = result.num_false.get(run.split, 0) + false
            points = result.num_points.get(run.split, 0) + len(run.block)
            result.num_points[run.split] = points
            continue
        found = _first_new(rows[run.name], run.onset)
        by_chance = _first_new(rows.get(run.twin or "", []), run.onset) is not None
        result.faults.setdefault(run.split, []).append(
            ForkResult(
                kind=run.kind,
                variant=run.grade,
                delay=None if found is None else found - run.onset,
                is_early=None,
                by_chance=by_chance,
            )
        )
    return result


def suite_tables(results: Sequence[SuiteResult], runs: Sequence[LabRun]) -> str:
    """Per split: all contenders, then the kinds of fault for the first of them."""
    parts = [
        "Runs of the lab with a fault of known onset, and runs without one. Found: a new alarm "
        "from the onset on. Chance: the clean twin gives one in the same rows. Delays in steps."
    ]
    for split in SPLITS:
        count = sum(run.split == split for run in runs)
        if count:
            parts.append(f"### {split}, {count} runs\n\n{_contender_table(results, split)}")
            parts.append(f"By kind, {results[0].name}:\n\n{_kind_table(results[0], split)}")
    return "\n\n".join(parts)


def _contender_table(results: Sequence[SuiteResult], split: str) -> str:
    header = (
        "detector",
        "false episodes: count; per 10,000 points [95 %]",
        *(f"found (chance), {grade}" for grade in GRADES),
        "delay: median / worst",
    )
    rows = []
    for result in sorted(results, key=lambda item: item.num_false.get(split, 0)):
        faults = result.faults.get(split, [])
        grades = [recall_of([item for item in faults if item.variant == grade]) for grade in GRADES]
        false = rate_of(result.num_false.get(split, 0), result.num_points.get(split, 0))
        rows.append(
            (result.name, false, *(_cell(recall) for recall in grades), recall_of(faults).delay)
        )
    return table(header, rows)


def _kind_table(result: SuiteResult, split: str) -> str:
    faults = result.faults.get(split, [])
    rows = []
    for kind in dict.fromkeys(fault.kind for fault in faults):
        grades = [
            recall_of([item for item in faults if item.kind == kind and item.variant == grade])
            for grade in GRADES
        ]
        rows.append((kind, *(f"{_cell(recall)}; {recall.delay}" for recall in grades)))
    return table(("kind", *(f"{grade}: found (chance); delay" for grade in GRADES)), rows)


def _cell(recall: Recall) -> str:
    if not recall.total:
        return "-"
    return f"{recall.found} of {recall.total} ({100 * recall.chance:.0f} %)"


def _alarm_rows(contender: Contender, run: LabRun) -> list[int]:
    flags = nonfinite_counts(run.block, contender.watch(run.block).run)
    rows: list[int] = np.flatnonzero(flags).tolist()
    return rows


def _first_new(rows: Sequence[int], onset: int) -> int | None:
    return next((row for row in onset_rows(rows) if row >= onset), None)
