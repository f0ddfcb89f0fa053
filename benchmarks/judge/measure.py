"""What the judge says of each world."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.judge.drawn import Drawn
from benchmarks.judge.worlds import FAULT_AT, World, is_recorded, records_of
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.incidents import Incident
from trimtab.judge import Judge

FOUND_WITHIN = 250
"""Records after a fault in which its incident must begin."""


@dataclass(frozen=True, slots=True)
class Said:
    """An incident and the advice about it."""

    incident: Incident
    action: ActionKind


def judge(block: Block, rules: str | None = None) -> list[Said]:
    """Judge a run from its first record to its last."""
    ours = Judge(rules=rules)
    ours.update(block)
    ours.finish()
    actions = [ours.explain(incident, block).action for incident in ours.incidents]
    return [
        Said(incident, action.kind if action else ActionKind.WAIT)
        for incident, action in zip(ours.incidents, actions, strict=True)
    ]


@dataclass
class Healthy:
    """What was said of some healthy runs."""

    steps: int = 0
    incidents: int = 0
    acts: int = 0
    """Incidents with an advice other than to wait."""
    by_kind: dict[str, "Healthy"] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Incidents in 10,000 steps."""
        return 1e4 * self.incidents / max(self.steps, 1)

    @property
    def worst(self) -> tuple[str, float]:
        """The kind with the most incidents in 10,000 steps."""
        rates = {kind: part.rate for kind, part in self.by_kind.items()}
        name = max(rates, key=rates.__getitem__, default="")
        return name, rates.get(name, 0.0)

    def add(self, kind: str, block: Block, said: list[Said]) -> None:
        for part in (self, self.by_kind.setdefault(kind, Healthy())):
            part.steps += len(block)
            part.incidents += len(said)
            part.acts += sum(one.action is not ActionKind.WAIT for one in said)


def measure_healthy(worlds: Iterable[World], folder: Path, half: str, rules: str) -> Healthy:
    """Judge the healthy runs of one half that are in the cache."""
    found = Healthy()
    for world in worlds:
        if world.half == half and is_recorded(world, folder):
            block = records_of(world, folder)
            found.add(world.kind, block, judge(block, rules))
    return found


def measure_faults(worlds: Iterable[World], folder: Path, half: str) -> dict[str, list[bool]]:
    """Return, by fault, whether it was found in each run."""
    found: dict[str, list[bool]] = defaultdict(list)
    for world in worlds:
        if world.half == half and is_recorded(world, folder):
            said = judge(records_of(world, folder))
            found[world.fault].append(any(_says_something_new(one.incident) for one in said))
    return found


def _says_something_new(incident: Incident) -> bool:
    """Return whether an incident begins at the fault, or one that is open worsens there."""
    until = FAULT_AT + FOUND_WITHIN
    worsened = any(FAULT_AT <= finding.step <= until for finding in incident.findings)
    return worsened or _is_near(incident, FAULT_AT, before=12, after=FOUND_WITHIN)


def _is_near(incident: Incident, at: int, before: int, after: int) -> bool:
    first = min(incident.onset.step, incident.findings[0].step)
    return at - before <= first <= at + after


def judge_drawn(drawn: Drawn) -> tuple[bool, bool]:
    """Return whether a drawn incident was found, and whether all that is said is right."""
    said = judge(drawn.block)
    if drawn.may_be_silent:
        return bool(said), all(one.incident.incident_class in drawn.classes for one in said)
    after = drawn.within or FOUND_WITHIN
    near = [one for one in said if _is_near(one.incident, drawn.at, before=25, after=after)]
    if not near:
        return False, False
    right = len(said) <= 2
    first = near[0]
    if drawn.classes:
        right &= first.incident.incident_class in drawn.classes
    if drawn.waits is not None:
        right &= (first.action is ActionKind.WAIT) == drawn.waits
    if drawn.symptom:
        right &= drawn.symptom in first.incident.symptoms
    return True, right
