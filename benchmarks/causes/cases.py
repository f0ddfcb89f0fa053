"""Cases: incidents of lab runs, what was observed in them, and their true cause.

Each run is judged once; its cases are kept in a cache until the code that makes them changes.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trimtab
from trimtab.core.block import Block
from trimtab.core.causes import Cause
from trimtab.core.config import Config
from trimtab.core.findings import HARMLESS
from trimtab.core.incidents import Incident
from trimtab.core.run import RunFacts
from trimtab.core.signals import GRAD_NORM, LOSS
from trimtab.explain.causes.by_evidence import observe_all
from trimtab.explain.causes.plausible import Situation, situation_of
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.checks import Answers, Observed, ObservedOutcome
from trimtab.judge import Judge
from trimtab.source import read_run

CACHE = ".cases"
"""A folder beside the runs of a suite."""

_CAUSES = {cause.id: cause for cause in Cause}

_FEW = (LOSS, GRAD_NORM)
"""The signals that every log has."""

_SLACK_STEPS = 3
"""A detector may date the onset back a little too far."""

_ECHO_STEPS = 100
"""Later than this after the end of a fault, an incident has another cause."""

_OF_TIME = {Cause.LOADER_STALL.id, Cause.SLOW_RANK.id}
"""In runs with another fault, slow steps are those of a machine that was shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One incident of a lab run."""

    run: str
    kind: str
    grade: str
    seed: int
    cause: Cause | None
    """None if nothing was done to the run."""
    answers: Mapping[str, str]
    """The outcome of each observation, by its id."""
    situation: Situation
    is_few: bool
    """Whether only loss and gradient norm were recorded."""

    def results(self) -> Answers:
        """The answers as a ranking takes them."""
        return Answers(
            {
                id: Observed(signal="", outcome=ObservedOutcome(outcome), observation="")
                for id, outcome in self.answers.items()
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """All cases of some suites."""

    cases: tuple[Case, ...]
    missed: tuple[str, ...]
    """Faulty runs without an incident: detection has to find them first."""


def read_cases(suites: Iterable[Path]) -> Cases:
    """The first incident at or after the onset of each fault, every one of runs without a fault."""
    cases: dict[str, list[Case]] = {}
    missed = []
    for path in (path for suite in suites for path in sorted(suite.glob("*/truth.json"))):
        truth = json.loads(path.read_text(encoding="utf-8"))
        found = [_case(truth, part) for part in _parts(path, truth)]
        if path.parent.name in cases:
            continue  # the same scenario in two suites
        cases[path.parent.name] = found
        if truth["is_fault"] and all(case.is_few for case in found):
            missed.append(path.parent.name)
    return Cases(cases=tuple(c for group in cases.values() for c in group), missed=tuple(missed))


def _case(truth: Mapping[str, Any], part: Mapping[str, Any]) -> Case:
    return Case(
        run=truth["scenario"],
        kind=truth["kind"],
        grade=truth["grade"] or "",
        seed=truth["setting"]["seed"],
        cause=_CAUSES.get(truth["cause"]),
        answers=part["answers"],
        situation=_situation(part["situation"]),
        is_few=part["part"] == "few",
    )


def _parts(path: Path, truth: Mapping[str, Any]) -> list[dict[str, Any]]:
    cached = path.parent.parent / CACHE / f"{path.parent.name}-{_code_digest()}.json"
    if not cached.exists():
        cached.parent.mkdir(exist_ok=True)
        cached.write_text(json.dumps(list(_observe(path.parent, truth))), encoding="utf-8")
    parts: list[dict[str, Any]] = json.loads(cached.read_text(encoding="utf-8"))
    return parts


def _observe(folder: Path, truth: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is observed with all signals, then what is with loss and gradient norm alone.

    A log that has nothing else is judged for itself: most faults do not show in it.
    """
    source = read_run(folder)
    few = {name: source.block.column(name) for name in _FEW}
    bare = dataclasses.replace(source.block, columns=few, events=())
    for part, block, facts in (("all", source.block, source.facts), ("few", bare, RunFacts())):
        judge = Judge(Config(), plugins=True)
        judge.update(block)
        judge.finish()
        for incident in _chosen(judge.incidents, truth):
            answers, situation = _answers(incident, block, facts)
            yield {"part": part, "answers": answers, "situation": situation}


def _chosen(incidents: tuple[Incident, ...], truth: Mapping[str, Any]) -> list[Incident]:
    if truth["cause"] is None:
        return list(incidents)
    earliest = truth["onset"] - _SLACK_STEPS
    latest = truth["steps"] if truth["end"] is None else truth["end"] + _ECHO_STEPS
    is_of_time = truth["cause"] in _OF_TIME
    return [
        item
        for item in incidents
        if earliest <= item.onset.step <= latest
        and (is_of_time or not HARMLESS.issuperset(item.symptoms))
    ][:1]


def _answers(
    incident: Incident, run: Block, facts: RunFacts
) -> tuple[dict[str, str], dict[str, Any]]:
    context = IncidentContext.of(incident, run, facts)
    results = observe_all(context)
    found = situation_of(context, results)
    situation = {
        "shape": found.shape,
        "kind": found.kind,
        "impossible": sorted(cause.id for cause in found.impossible),
        "has_own_signals": found.has_own_signals,
    }
    return {id: result.outcome.value for id, result in results.items()}, situation


def _situation(saved: Mapping[str, Any]) -> Situation:
    impossible = frozenset(_CAUSES[id] for id in saved["impossible"])
    return Situation(**{**saved, "impossible": impossible})


def _code_digest() -> str:
    """A digest of the code that finds incidents and observes them."""
    root = Path(trimtab.__file__).parent
    folders = (root / "detect", root / "explain")
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
