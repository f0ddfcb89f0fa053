"""What the commands about runs and configs print with `--json`.

Dataclasses are printed field by field (`to_jsonable`); the dicts that commands make by hand are
TypedDicts here.
"""

from typing import Any, NotRequired, TypedDict

from trimtab.checks.examine import FixLine
from trimtab.checks.rollback import RollbackCost
from trimtab.core.run import RunFacts
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures.comparison import Comparison
from trimtab.explain.measures.discards import Discards
from trimtab.state.checkpoints.manifest import CheckpointFacts


class CauseName(TypedDict):
    """A cause, by its id and title."""

    id: str
    title: str


class DiagnosedRun(TypedDict):
    """`trimtab diagnose`: one run, judged and explained."""

    source: str
    format: str
    rules: str
    records: int
    first_step: int | None
    last_step: int | None
    signals: dict[str, str]
    discarded: Discards | None
    facts: RunFacts
    notes: list[str]
    packages: dict[str, str]
    incidents: list[Diagnosis]


class GoodputFigures(TypedDict):
    """How much of a run was kept."""

    steps_done: int
    steps_kept: int
    share: float
    hours: float | None
    cost: float | None


class ReportedRun(DiagnosedRun):
    """`trimtab report`: the same, with the goodput and the files that were written."""

    goodput: GoodputFigures
    page: str | None
    postmortems: list[str]


class CheckFinding(TypedDict):
    """A rule or test that found something."""

    id: str
    level: str
    title: str
    what: str
    why: str
    how: str
    source: str
    fix: NotRequired[list[FixLine]]
    evidence: NotRequired[str]
    cannot_see: NotRequired[str]


class UncheckedRule(TypedDict):
    """A rule that did not run, and the settings that it needs."""

    id: str
    needs: list[str]


class CheckedConfig(TypedDict):
    """`trimtab check`: what is wrong with a training config."""

    source: str
    format: str
    notes: list[str]
    findings: list[CheckFinding]
    not_checked: list[UncheckedRule]
    checked: int
    off: list[str]
    rollback: RollbackCost | None
    plan: dict[str, Any]


class PassedTest(TypedDict):
    """A test that found nothing."""

    id: str
    what: str


class SkippedTest(TypedDict):
    """A test that was not made, and why."""

    id: str
    reason: str
    broken: bool


class PreflightFindings(TypedDict):
    """`trimtab preflight`: the tests before step 1."""

    subject: str
    findings: list[CheckFinding]
    passed: list[PassedTest]
    not_looked_at: list[SkippedTest]
    rules_checked: int
    changed: list[str]
    off: list[str]
    seconds: float


class LayerOverWidths(TypedDict):
    """One layer in the coordinate check."""

    name: str
    at_init: list[float]
    change: list[float]
    slope: float | None


class CoordinateFindings(TypedDict):
    """`trimtab preflight --widths`: the coordinate check."""

    widths: list[int]
    steps: int
    stable: bool
    advice: str
    layers: list[LayerOverWidths]


class RangeFindings(TypedDict):
    """`trimtab preflight --lr-range`: the learning-rate range test."""

    rates: list[float]
    losses: list[float | None]
    stop: str
    highest: float | None
    advised: float | None
    turning: float | None
    steepest: float | None


class SourceNotes(TypedDict):
    """Notes of the readers of both runs."""

    run: list[str]
    base: list[str]


class ComparedRuns(TypedDict):
    """`trimtab compare`: each run beside the base, in the order of the command line."""

    comparisons: list[Comparison]


class ListedCheckpoints(TypedDict):
    """`trimtab checkpoints`: the checkpoints of a run."""

    run: str
    checkpoints: list[CheckpointFacts]
    resumes_from: str | None
