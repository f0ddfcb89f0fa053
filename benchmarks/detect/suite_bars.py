"""The lab against its bars: what was missed and why, and which healthy runs were alarmed.

A fault run has to be found if any recorded signal left the clean twin by more than 5 sigma within
100 steps (`benchmarks.twins`). What is missed is listed with what moved first, and
with the reason that somebody found for it (missed.toml).
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.detect.classes import Classed, Judged, lab_classed
from benchmarks.detect.intervals import share_of
from benchmarks.detect.suite import LabRun
from benchmarks.results import table
from benchmarks.scoring import onset_rows
from benchmarks.twins import Move, Pair
from trimtab.detect.reference import lay_beside
from trimtab.lab.scenarios.catalogue import CLEAN

REASONS = Path(__file__).parent / "missed.toml"
"""`kind = "reason"` or `"kind-grade" = "reason"`, written by hand after a look at the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One run of the lab, as trimtab judged it."""

    run: LabRun
    has_alarm: bool
    is_found: bool
    """Whether a new alarm came from the onset on; never if the run has no fault."""
    is_found_beside: bool
    """The same where the clean twin is given as a reference."""
    moves: tuple[Move, ...]
    """What left the twin, the first one first; of a fault run alone."""
    classed: Classed | None


def examine(runs: Sequence[LabRun]) -> list[Examined]:
    """Judge every run, and compare the fault runs with their twins."""
    by_name = {run.name: run for run in runs}
    return [_examine(run, by_name.get(run.twin or "")) for run in runs]


def bar_tables(examined: Sequence[Examined], splits: Sequence[str]) -> str:
    """Recall, what was missed, and what was alarmed for nothing."""
    parts = [
        "Recall: of the fault runs in which any recorded signal left the twin by over 5 sigma "
        "within 100 steps. Alarmed: healthy runs with any alarm at all.",
        _recall_table(examined, splits),
        f"What was missed, and what moved first in it:\n\n{_missed_table(examined)}",
        "Healthy runs that were alarmed (bar 2 % of the runs):\n\n"
        + _alarmed_table(examined, splits),
    ]
    return "\n\n".join(parts)


def _examine(run: LabRun, twin: LabRun | None) -> Examined:
    judged = Judged.of(run.block)
    is_fault = run.onset is not None and twin is not None
    moves: list[Move] = []
    classed = None
    is_found_beside = False
    if is_fault and run.onset is not None and twin is not None:
        moves = Pair(run.block, twin.block, run.onset).moves()
        classed = lab_classed(run, twin, judged)
        beside = Judged.of(lay_beside(run.block, twin.block))
        is_found_beside = _is_found(beside, run.onset)
    return Examined(
        run=run,
        has_alarm=bool(judged.alarm_rows),
        is_found=run.onset is not None and _is_found(judged, run.onset),
        is_found_beside=is_found_beside,
        moves=tuple(moves),
        classed=classed,
    )


def _is_found(judged: Judged, onset: int) -> bool:
    return any(row >= onset for row in onset_rows(judged.alarm_rows))


def _recall_table(examined: Sequence[Examined], splits: Sequence[str]) -> str:
    rows = []
    for split in splits:
        faults = [item for item in examined if item.run.split == split and item.moves]
        healthy = [item for item in examined if item.run.split == split and item.run.onset is None]
        if faults:
            rows.append(
                (
                    split,
                    share_of(sum(item.is_found for item in faults), len(faults)),
                    share_of(sum(item.is_found_beside for item in faults), len(faults)),
                    share_of(sum(item.has_alarm for item in healthy), len(healthy)),
                )
            )
    header = (
        "split",
        "found of those that differ (bar 95 %)",
        "the same with the twin as reference",
        "healthy runs alarmed (bar 2 %)",
    )
    return table(header, rows)


def _missed_table(examined: Sequence[Examined]) -> str:
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    groups: dict[tuple[str, str], list[Examined]] = {}
    for item in examined:
        if item.moves:
            groups.setdefault((item.run.kind, item.run.grade), []).append(item)
    rows = []
    for (kind, grade), items in groups.items():
        missed = [item for item in items if not item.is_found]
        if missed:
            reason = reasons.get(f"{kind}-{grade}", reasons.get(kind, "not looked at"))
            first = dict.fromkeys(f"`{item.moves[0].signal}`" for item in missed)
            sigmas = sorted(item.moves[0].sigmas for item in missed)
            told = f"{sigmas[0]:.0f} to {sigmas[-1]:.0f}"
            count = f"{len(missed)} of {len(items)}"
            rows.append((kind, grade, count, ", ".join(first), told, reason))
    return table(("kind", "grade", "missed", "moved first", "by sigmas", "reason"), rows)


def _alarmed_table(examined: Sequence[Examined], splits: Sequence[str]) -> str:
    healthy = [item for item in examined if item.run.onset is None]
    kinds = sorted({item.run.kind for item in healthy}, key=lambda kind: (kind == CLEAN, kind))
    rows = []
    for kind in kinds:
        cells = []
        for split in splits:
            items = [item for item in healthy if item.run.kind == kind and item.run.split == split]
            cells.append(share_of(sum(item.has_alarm for item in items), len(items)))
        names = [item.run.name for item in healthy if item.run.kind == kind and item.has_alarm]
        rows.append((kind, *cells, ", ".join(names) or "-"))
    return table(("kind", *splits, "alarmed"), rows)
