"""What holds for every detector of both rule sets; new detectors join by themselves."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.detect.runs import every_kind_of_run
from tests.kit.cases import RUNS_ALL

import trimtab.detect
from trimtab.core.block import Block, Record
from trimtab.core.config import Config, MetricRule
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding
from trimtab.detect.detector_set import DetectorSet, EventSchedule
from trimtab.detect.loss.level_shift import LevelShift, TrendReversal
from trimtab.detect.loss.loss_detectors import LossDetectors
from trimtab.detect.loss.loss_spike import LossSpike
from trimtab.detect.loss.norm_spike import NormSpike
from trimtab.detect.run.metric_rules import MetricRules
from trimtab.detect.textbook import TextbookThresholds, textbook_detectors
from trimtab.detect.trimtab_detectors import trimtab_detectors

SEEDS = range(18)
LENGTHS = (120, 1500, 1500)
# Short windows, so that the textbook's rules go through every state many times.
SHORT = TextbookThresholds(window=10, rise_records=3)
CONFIG = Config()
METRIC_RULES = {
    "grad_norm": MetricRule(above=2.0, lasting=3),
    "step_seconds": MetricRule(change=0.2, lasting=8),
    "lr": MetricRule(below=1e-4, severity="warn"),
}
RULE_SETS: dict[str, Callable[[Config], list[Detector]]] = {
    "trimtab": trimtab_detectors,
    "textbook": lambda config: textbook_detectors(SHORT),
    "rules of a user": lambda config: [MetricRules(METRIC_RULES)],
}

every_detector = pytest.mark.parametrize(
    ("rules", "place"),
    [
        pytest.param(rules, place, id=f"{rules}-{detector.name}")
        for rules, make in RULE_SETS.items()
        for place, detector in enumerate(make(CONFIG))
    ],
)


@cache
def run_of(seed: int) -> tuple[Block, list[Record], dict[int, KnownChange]]:
    """A run with every kind of trouble, its rows, and what is known to have happened in it."""
    run = every_kind_of_run(seed, LENGTHS[seed % len(LENGTHS)])
    schedule = EventSchedule()
    schedule.add(run.events)
    return run, list(run.records()), dict(schedule.update(run))


def new(rules: str, place: int) -> Detector:
    return RULE_SETS[rules](CONFIG)[place]


def reloaded(detector: Detector, fresh: Detector) -> Detector:
    """The detector after its state went through JSON."""
    state = json.loads(json.dumps(detector.state_dict()))
    fresh.load_state_dict(state)
    assert repr(fresh.state_dict()) == repr(state)
    return fresh


def finds_in(rules: str, place: int) -> Iterator[int]:
    """Yield the runs in which the detector finds something."""
    for seed in SEEDS:
        if DetectorSet([new(rules, place)]).update(run_of(seed)[0]):
            yield seed


def texts(findings: list[Finding]) -> list[str]:
    # By their text, because NaN is not equal to itself.
    return [repr(finding) for finding in sorted(findings, key=lambda finding: finding.tick)]


@every_detector
def test_many_records_at_once_equal_one_by_one_however_a_run_is_cut_and_saved(
    rules: str, place: int
) -> None:
    for seed in SEEDS if RUNS_ALL else islice(finds_in(rules, place), 2):
        run, rows, changes = run_of(seed)
        random = np.random.default_rng(seed)
        cuts = {int(cut) for cut in random.integers(0, len(run), 6)}

        single, one_by_one = new(rules, place), []
        for at, row in enumerate(rows):
            if at in cuts:
                single = reloaded(single, new(rules, place))
            if changes.get(at, KnownChange.NOTHING) & single.listens_to:
                single.on_event(changes[at])
            if type(single).update is Detector.update:
                one_by_one += single.update_many(run[at : at + 1])
            else:
                one_by_one += single.update(row)

        for bounds in ({0}, {0, *cuts}):
            many, at_once = new(rules, place), []
            events = {at for at, change in changes.items() if change & many.listens_to}
            for first, last in pairwise(sorted(bounds | events | {len(run)})):
                if first in cuts:
                    many = reloaded(many, new(rules, place))
                if first in events:
                    many.on_event(changes[first])
                at_once += many.update_many(run[first:last])
            assert texts(at_once) == texts(one_by_one)


@every_detector
def test_the_runs_of_that_test_make_the_detector_find_something(rules: str, place: int) -> None:
    assert next(finds_in(rules, place), None) is not None


def test_every_detector_of_the_package_is_in_a_rule_set() -> None:
    for module in pkgutil.walk_packages(trimtab.detect.__path__, "trimtab.detect."):
        importlib.import_module(module.name)
    written = {
        cls for cls in Detector.__subclasses__() if cls.__module__.startswith("trimtab.detect.")
    }
    used = {type(detector) for make in RULE_SETS.values() for detector in make(CONFIG)}
    assert written == used


def test_the_page_on_detection_has_every_detector_that_reports() -> None:
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text(encoding="utf-8")
    names = {detector.name for detector in trimtab_detectors(CONFIG)} - {LossDetectors.name}
    names |= {part.name for part in (LossSpike, LevelShift, TrendReversal, NormSpike)}
    assert {name for name in names if f"| [{name}](" not in page} == set()
