"""The cost of a false alarm: alarms per 10,000 steps of each detector where nothing is wrong.

scripts/bench detect false_alarms SUITE...    runs of lab suites, and the public runs
scripts/bench detect false_alarms --split tune SUITE...    one split of the public runs, printed

Four kinds of material: clean runs and hard negatives of the lab, healthy public runs, and the quiet
parts of eventful public runs: records farther than 32 records from any labelled event. An episode
is a group of alarms of one detector at most 3 records apart.

Two kinds of alarms have columns of their own and are not false: those that only report lost time
(`HARMLESS`; a busy machine really is slow), and those of incidents that begin at a bad batch that
really is in the text of the lab, or at most 3 steps later (bad_batches.py).
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from tests.kit.public_runs import RealRun

from benchmarks.detect.bad_batches import SHARE, STEPS_AFTER, bad_steps, follows_bad_batch
from benchmarks.detect.figures import rate_of
from benchmarks.detect.intervals import share_of
from benchmarks.detect.suite import read_suite
from benchmarks.results import table
from benchmarks.scoring import episodes, excused
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import HARMLESS, Finding, Severity
from trimtab.judge import Judge
from trimtab.lab.scenarios.catalogue import CLEAN
from trimtab.lab.scenarios.scenario import ModelShape

DISTANCE = 32
"""Records from an event within which a part is not quiet: the loss is still coming back."""

ANY = "any detector"
LAB = "lab"
QUIET = "quiet parts of eventful runs"

MAX_ALARMED, MAX_IN_QUIET_PARTS = 0.01, 2.0
"""The bars: a share of the healthy lab runs, and false episodes per 10,000 points."""

LOOKS = Path(__file__).parent / "looks.toml"
"""How often held-out material was judged, written by hand after each look."""


@dataclass(slots=True, kw_only=True)
class Material:
    """What was judged of one kind of material."""

    name: str
    num_runs: int = 0
    num_points: int = 0
    num_alarmed: int = 0
    """Runs with any false alarm."""
    num_rolled_back: int = 0
    """Runs in which any incident is advised to be rolled back, whatever it was."""
    at_bad_batches: list[str] = field(default_factory=list)
    """Runs with an alarm at a real bad batch."""
    slowed: list[str] = field(default_factory=list)
    """Runs with an alarm that only reports lost time."""
    episodes: Counter[str] = field(default_factory=Counter)
    """By detector."""
    alarmed: list[str] = field(default_factory=list)
    """The names of the runs, with the detectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of one kind of material."""

    material: str
    name: str
    block: Block
    counts: BoolArray
    """The records in which an alarm counts."""
    bad_steps: Callable[[], tuple[int, ...]] = tuple
    """The steps with a real bad batch; only asked for if there is an alarm."""


def measure_false_alarms(suites: Iterable[Path], real: Iterable[RealRun]) -> list[Material]:
    """Judge every run without a fault, and the quiet parts of the others."""
    materials: dict[str, Material] = {}
    for run in (*_lab_runs(suites), *_public_runs(real)):
        _judge(materials.setdefault(run.material, Material(name=run.material)), run)
    return list(materials.values())


def false_alarm_tables(materials: Sequence[Material]) -> str:
    """One line per material, one per detector, and the runs that were alarmed."""
    header = (
        "material",
        "runs",
        "points",
        "false episodes: count; per 10,000 [95 %]",
        "runs with a false alarm",
        "runs with an alarm at a real bad batch",
        "runs with an alarm of lost time",
        "advised to roll back",
    )
    rows = [
        (
            item.name,
            item.num_runs,
            f"{item.num_points:,}",
            rate_of(item.episodes[ANY], item.num_points),
            share_of(item.num_alarmed, item.num_runs),
            len(item.at_bad_batches),
            len(item.slowed),
            item.num_rolled_back,
        )
        for item in materials
    ]
    parts = [
        f"Quiet parts: records farther than {DISTANCE} records from any labelled event. A real bad "
        f"batch has a row with at least {SHARE:.0%} one token, computed from the data of the run; "
        f"alarms of incidents that begin there or at most {STEPS_AFTER} steps later are not false, "
        "nor are those that only report lost time.",
        table(header, rows),
        "By detector (per 10,000 points; detectors without a line raised none):",
        table(("detector", *(item.name for item in materials)), [*_detector_rows(materials)]),
        *(
            f"{title}: " + ("; ".join(name for item in materials for name in names(item)) or "none")
            for title, names in _LISTS.items()
        ),
        table(("bar", "reached", "asked", "met"), [*_bar_rows(materials)]),
        *tomllib.loads(LOOKS.read_text(encoding="utf-8")).values(),
    ]
    return "\n\n".join(parts)


_LISTS: dict[str, Callable[[Material], list[str]]] = {
    "Runs with a false alarm": lambda item: item.alarmed,
    "At real bad batches": lambda item: item.at_bad_batches,
    "Lost time": lambda item: item.slowed,
}


def _bar_rows(materials: Sequence[Material]) -> Iterator[tuple[str, ...]]:
    lab = [item for item in materials if item.name.startswith(LAB)]
    if lab:
        runs, alarmed = sum(item.num_runs for item in lab), sum(item.num_alarmed for item in lab)
        back = sum(item.num_rolled_back for item in lab)
        met = _yes(alarmed <= MAX_ALARMED * runs)
        yield "healthy lab runs with a false alarm", share_of(alarmed, runs), "at most 1 %", met
        yield "healthy lab runs advised to roll back", f"{back} of {runs}", "none", _yes(not back)
    for item in materials:
        if item.name.endswith(QUIET):
            count, points = item.episodes[ANY], item.num_points
            met = _yes(1e4 * count <= MAX_IN_QUIET_PARTS * points)
            yield item.name, rate_of(count, points), "at most 2 per 10,000", met


def _yes(is_met: bool) -> str:
    return "yes" if is_met else "NO"


def _detector_rows(materials: Sequence[Material]) -> Iterator[tuple[str, ...]]:
    names = sorted({name for item in materials for name in item.episodes} - {ANY})
    for name in names:
        counts = [(item.episodes[name], item.num_points) for item in materials]
        yield name, *(f"{count}; {1e4 * count / max(points, 1):.2f}" for count, points in counts)


def _lab_runs(suites: Iterable[Path]) -> Iterator[_Run]:
    for suite in suites:
        for run in read_suite(suite):
            if run.onset is None:
                shape = next(
                    (it for it in ModelShape if run.name.endswith(f"-{it}")), ModelShape.SMALL
                )
                kind = "clean" if run.kind == CLEAN else "hard negatives"
                yield _Run(
                    material=f"{LAB} {shape}, {kind}",
                    name=run.name,
                    block=run.block,
                    counts=np.ones(len(run.block), dtype=np.bool_),
                    bad_steps=partial(bad_steps, suite / run.name),
                )


def _public_runs(runs: Iterable[RealRun]) -> Iterator[_Run]:
    for run in runs:
        is_healthy = run.label == "healthy"
        part = "healthy" if is_healthy else QUIET
        yield _Run(
            material=f"public {run.split}, {part}",
            name=run.name,
            block=run.block,
            counts=quiet_records(run, 0 if is_healthy else DISTANCE),
        )


def quiet_records(run: RealRun, distance: int = DISTANCE) -> BoolArray:
    """Which records of a public run are farther than this from any labelled event."""
    quiet = np.ones(len(run.block), dtype=np.bool_)
    for first, last in excused(run):
        quiet[max(first - distance, 0) : last + distance + 1] = False
    return quiet


def _judge(material: Material, run: _Run) -> None:
    judge, block = Judge(), run.block
    findings = [*judge.update(block).findings, *judge.finish().findings]
    alarms = [item for item in findings if item.severity is Severity.ALARM]
    alarms = [item for item in alarms if run.counts[block.row_of(item.tick)]]
    material.num_runs += 1
    material.num_points += int(run.counts.sum())
    if not alarms:
        return
    material.num_rolled_back += any(
        judge.explain(incident, block).action.kind is ActionKind.ROLL_BACK
        for incident in judge.incidents
        if run.counts[block.row_of(incident.onset.tick)]
    )
    slow = [item for item in alarms if item.symptom in HARMLESS]
    others = [item for item in alarms if item.symptom not in HARMLESS]
    bad = run.bad_steps() if others else ()
    at_batch = [item for item in others if follows_bad_batch(_onset(judge, item), bad)]
    false = [item for item in others if item not in at_batch]
    if slow:
        material.slowed.append(run.name)
    if at_batch:
        material.at_bad_batches.append(f"{run.name} ({_detectors(at_batch)})")
    if false:
        material.num_alarmed += 1
        material.alarmed.append(f"{run.name} ({_detectors(false)})")
    _count_episodes(material, block, false)


def _count_episodes(material: Material, block: Block, alarms: Sequence[Finding]) -> None:
    by_detector: dict[str, list[Finding]] = {}
    for alarm in alarms:
        for name in (ANY, alarm.detector):
            by_detector.setdefault(name, []).append(alarm)
    for name, found in by_detector.items():
        rows = sorted({block.row_of(item.tick) for item in found})
        material.episodes[name] += len(episodes(rows))


def _onset(judge: Judge, alarm: Finding) -> int:
    """The step at which the incident of an alarm began."""
    started = [item.onset for item in judge.incidents if item.onset.tick <= alarm.tick]
    return started[-1].step if started else alarm.step


def _detectors(alarms: Sequence[Finding]) -> str:
    return ", ".join(sorted({item.detector for item in alarms}))
