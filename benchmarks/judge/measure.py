"""What the judge says of each world."""

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.kit.public_runs import DATA

from benchmarks.judge.drawn import Drawn
from benchmarks.judge.worlds import FAULT_AT, World, records_of
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, Column
from trimtab.core.incidents import Incident
from trimtab.judge import Judge

STORIES = DATA / "stories"
FOUND_WITHIN = 250
"""Records after a fault in which its incident must begin."""


@dataclass(frozen=True, slots=True)
class Said:
    """An incident and the advice about it."""

    incident: Incident
    action: ActionKind
    cause: str


def judge(block: Block, rules: str | None = None) -> list[Said]:
    """Judge a run from its first record to its last."""
    ours = Judge(rules=rules)
    ours.update(block)
    ours.finish()
    said = []
    for incident in ours.incidents:
        diagnosis = ours.explain(incident, block)
        kind = diagnosis.action.kind if diagnosis.action else ActionKind.WAIT
        said.append(Said(incident, kind, str(diagnosis.cause)))
    return said


@dataclass
class Healthy:
    """What was said of the healthy runs of one half."""

    steps: int = 0
    incidents: int = 0
    acts: int = 0
    """Incidents with an advice other than to wait."""
    by_kind: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    by_symptom: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Incidents in 10,000 steps."""
        return 1e4 * self.incidents / max(self.steps, 1)

    @property
    def worst(self) -> tuple[str, float]:
        """The kind with the most incidents in 10,000 steps."""
        rates = {kind: 1e4 * n / max(steps, 1) for kind, (steps, n, _) in self.by_kind.items()}
        name = max(rates, key=rates.__getitem__, default="")
        return name, rates.get(name, 0.0)


def measure_healthy(
    worlds: Iterable[World], folder: Path, half: str, rules: str | None = None
) -> Healthy:
    """Judge the healthy runs of one half that are in the cache."""
    found = Healthy()
    for world in worlds:
        if world.half != half or not (folder / f"{world.name}.npz").exists():
            continue
        block = records_of(world, folder)
        said = judge(block, rules)
        acts = sum(one.action is not ActionKind.WAIT for one in said)
        found.steps += len(block)
        found.incidents += len(said)
        found.acts += acts
        of_kind = found.by_kind[world.kind]
        of_kind[0], of_kind[1], of_kind[2] = (
            of_kind[0] + len(block),
            of_kind[1] + len(said),
            of_kind[2] + acts,
        )
        for one in said:
            found.by_symptom[one.incident.findings[0].symptom] += 1
    return found


def measure_faults(
    worlds: Iterable[World], folder: Path, half: str, rules: str | None = None
) -> dict[str, list[bool]]:
    """Return, by fault, whether it was found in each run."""
    found: dict[str, list[bool]] = defaultdict(list)
    for world in worlds:
        if world.half != half or not (folder / f"{world.name}.npz").exists():
            continue
        block = records_of(world, folder)
        found[world.fault].append(
            any(_says_something_new(one.incident, FAULT_AT) for one in judge(block, rules))
        )
    return found


def _says_something_new(incident: Incident, at: int) -> bool:
    """Return whether an incident begins at a fault, or one that is open worsens there."""
    worsened = any(at <= finding.step <= at + FOUND_WITHIN for finding in incident.findings)
    return worsened or _is_near(incident, at)


def _is_near(incident: Incident, at: int, before: int = 12, after: int = FOUND_WITHIN) -> bool:
    first = min(incident.onset.step, incident.findings[0].step)
    return at - before <= first <= at + after


def judge_drawn(drawn: Drawn, rules: str | None = None) -> tuple[bool, bool, str]:
    """Return whether a drawn incident was found, whether all is right, and what was said."""
    said = judge(drawn.block, rules)
    what = "; ".join(
        f"{one.incident.onset.step} {one.incident.incident_class} {one.action.value} "
        f"[{','.join(one.incident.symptoms)}]"
        for one in said
    )
    if drawn.may_be_silent:
        wrong = [one for one in said if one.incident.incident_class not in drawn.classes]
        return bool(said), not wrong, what
    after = drawn.within or FOUND_WITHIN
    near = [one for one in said if _is_near(one.incident, drawn.at, before=25, after=after)]
    if not near:
        return False, False, what
    right = len(said) <= 2
    first = near[0]
    if drawn.classes:
        right &= first.incident.incident_class in drawn.classes
    if drawn.waits is not None:
        right &= (first.action is ActionKind.WAIT) == drawn.waits
    if drawn.symptom:
        right &= drawn.symptom in first.incident.symptoms
    return True, right, what


def stories() -> list[tuple[dict[str, Any], Block]]:
    """Published incidents of the tune half that have a real series."""
    if not STORIES.exists():
        return []
    entries = json.loads((STORIES / "tune.json").read_text(encoding="utf-8"))
    found = []
    for entry in entries:
        if entry["sparse"]:
            continue
        block = _series_block(entry)
        if block is not None:
            found.append((entry, block))
    return found


SIGNALS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "loss_scale": "loss_scale",
    "update_norm": "update_norm",
}


def _series_block(entry: dict[str, Any]) -> Block | None:
    rows = entry["series"]
    if not rows:
        with (STORIES / entry["raw_file"]).open(encoding="utf-8") as file:
            rows = [{**row, "loss": row["loss_ce"]} for row in csv.DictReader(file)]
    step_of = next((k for k in ("step", "log_index", "day", "epoch") if k in rows[0]), None)
    if step_of is None:
        return None
    rows = [row for row in rows if row.get(step_of) is not None]
    is_counted = step_of in ("step", "log_index")
    steps: dict[float, dict[str, float]] = {}
    for place, row in enumerate(rows, 1):
        known = steps.setdefault(float(row[step_of]) if is_counted else place, {})
        for ours in SIGNALS:
            if row.get(ours) not in (None, ""):
                known[ours] = float(row[ours])
    order = sorted(steps)
    numbers = np.array(order).round().astype(np.int64)
    columns = {}
    for name in SIGNALS:
        values = np.array([steps[at].get(name, np.nan) for at in order])
        present = np.array([name in steps[at] for at in order])
        if present.any():
            columns[name] = Column(values=values, present=present)
    return Block.from_columns(columns, step=numbers)
