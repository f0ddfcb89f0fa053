"""The cost of a false alarm: alarms per 10,000 steps of each detector where nothing is wrong.

scripts/bench detect false_alarms SUITE...    runs of lab suites, and the public runs
scripts/bench detect false_alarms --split tune SUITE...    one split of the public runs, printed

Four kinds of material: clean runs and hard negatives of the lab, healthy public runs, and the quiet
parts of eventful public runs: records farther than 32 records from any labelled event. An episode
is a group of alarms of one detector at most 3 records apart.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.detect.figures import rate_of
from benchmarks.detect.intervals import share_of
from benchmarks.detect.suite import read_suite
from benchmarks.real_runs import RealRun
from benchmarks.results import table
from benchmarks.scoring import episodes, excused
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import Finding, Severity
from trimtab.detect.run.throughput import Throughput
from trimtab.judge import Judge
from trimtab.lab.scenarios.catalogue import CLEAN

DISTANCE = 32
"""Records from an event within which a part is not quiet: the loss is still coming back."""

ANY = "any detector"


@dataclass(slots=True, kw_only=True)
class Material:
    """What was judged of one kind of material."""

    name: str
    num_runs: int = 0
    num_points: int = 0
    num_alarmed: int = 0
    """Runs with any false alarm."""
    num_paused: int = 0
    """Of these, runs with alarms of `throughput` alone: on a busy machine its pauses are real."""
    num_rolled_back: int = 0
    """Of these, runs in which an incident is advised to be rolled back."""
    episodes: Counter[str] = field(default_factory=Counter)
    """By detector."""
    alarmed: list[str] = field(default_factory=list)
    """The names of the runs, with the detectors."""


def measure_false_alarms(suites: Iterable[Path], real: Iterable[RealRun]) -> list[Material]:
    """Judge every run without a fault, and the quiet parts of the others."""
    materials: dict[str, Material] = {}
    for name, run_name, block, counts in (*_lab_runs(suites), *_public_runs(real)):
        material = materials.setdefault(name, Material(name=name))
        _judge(material, run_name, block, counts)
    return list(materials.values())


def false_alarm_tables(materials: Sequence[Material]) -> str:
    """One line per material, one per detector, and the runs that were alarmed."""
    parts = [
        f"Quiet parts: records farther than {DISTANCE} records from any labelled event.",
        table(
            (
                "material",
                "runs",
                "points",
                "false episodes: count; per 10,000 [95 %]",
                "runs alarmed",
                "of these by throughput alone",
                "advised to roll back",
            ),
            [
                (
                    item.name,
                    item.num_runs,
                    f"{item.num_points:,}",
                    rate_of(item.episodes[ANY], item.num_points),
                    share_of(item.num_alarmed, item.num_runs),
                    item.num_paused,
                    item.num_rolled_back,
                )
                for item in materials
            ],
        ),
        "By detector (per 10,000 points; detectors without a line raised none):",
        table(("detector", *(item.name for item in materials)), [*_detector_rows(materials)]),
        "Runs that were alarmed: "
        + ("; ".join(name for item in materials for name in item.alarmed) or "none"),
    ]
    return "\n\n".join(parts)


def _detector_rows(materials: Sequence[Material]) -> Iterator[tuple[str, ...]]:
    names = sorted({name for item in materials for name in item.episodes} - {ANY})
    for name in names:
        counts = [(item.episodes[name], item.num_points) for item in materials]
        yield name, *(f"{count}; {1e4 * count / max(points, 1):.2f}" for count, points in counts)


def _lab_runs(suites: Iterable[Path]) -> Iterator[tuple[str, str, Block, BoolArray]]:
    for suite in suites:
        for run in read_suite(suite):
            if run.onset is None:
                name = "lab, clean" if run.kind == CLEAN else "lab, hard negatives"
                yield name, run.name, run.block, np.ones(len(run.block), dtype=np.bool_)


def _public_runs(runs: Iterable[RealRun]) -> Iterator[tuple[str, str, Block, BoolArray]]:
    for run in runs:
        is_healthy = run.label == "healthy"
        part = "healthy" if is_healthy else "quiet parts of eventful runs"
        quiet = quiet_records(run, 0 if is_healthy else DISTANCE)
        yield f"public {run.split}, {part}", run.name, run.block, quiet


def quiet_records(run: RealRun, distance: int = DISTANCE) -> BoolArray:
    """Which records of a public run are farther than this from any labelled event."""
    quiet = np.ones(len(run.block), dtype=np.bool_)
    for first, last in excused(run):
        quiet[max(first - distance, 0) : last + distance + 1] = False
    return quiet


def _judge(material: Material, name: str, block: Block, counts: BoolArray) -> None:
    judge = Judge()
    findings = [*judge.update(block).findings, *judge.finish().findings]
    alarms = [item for item in findings if item.severity is Severity.ALARM]
    alarms = [item for item in alarms if counts[block.row_of(item.tick)]]
    material.num_runs += 1
    material.num_points += int(counts.sum())
    if not alarms:
        return
    material.num_alarmed += 1
    by_detector: dict[str, list[Finding]] = {ANY: alarms}
    for alarm in alarms:
        by_detector.setdefault(alarm.detector, []).append(alarm)
    material.num_paused += by_detector.keys() == {ANY, Throughput.name}
    for detector, found in by_detector.items():
        rows = sorted({block.row_of(item.tick) for item in found})
        material.episodes[detector] += len(episodes(rows))
    material.num_rolled_back += any(
        judge.explain(incident, block).action.kind is ActionKind.ROLL_BACK
        for incident in judge.incidents
        if counts[block.row_of(incident.onset.tick)]
    )
    material.alarmed.append(f"{name} ({', '.join(sorted(by_detector.keys() - {ANY}))})")
