"""All detectors of a run together, with users' detectors and failing ones among them."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from tests.detect.feeding import at, block
from tests.detect.runs import every_kind_of_run
from tests.kit.cases import some_of

from trimtab.core.block import Block, Record
from trimtab.core.config import Config
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.detect.detector_set import SHORT, DetectorSet
from trimtab.detect.trimtab_detectors import trimtab_detectors


def detector_set(*users: Detector) -> DetectorSet:
    return DetectorSet([*trimtab_detectors(Config()), *users])


def found(pieces: list[Block], *users: Detector) -> list[str]:
    detectors = detector_set(*users)
    findings = [repr(finding) for piece in pieces for finding in detectors.update(piece)]
    assert not detectors.failures
    return findings


@pytest.mark.parametrize("seed", some_of(range(24), 6, 9, 12, 21))
def test_any_cut_and_any_save_gives_the_same_findings(seed: int) -> None:
    random = np.random.default_rng(seed)
    run = every_kind_of_run(seed, int(random.choice([30, 200, 700, 1500])))
    whole = found([run], Repeated())

    assert found(list(run.cut(1)), Repeated()) == whole
    edges = np.sort(random.integers(0, len(run) + 1, 6)).tolist()
    bounds = [0, *edges, len(run)]
    assert found([run[a:b] for a, b in pairwise(bounds)], Repeated()) == whole

    saved_at = edges[3]
    first, second = detector_set(Repeated()), detector_set(Repeated())
    head = first.update(run[:saved_at])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    findings = [*head, *second.update(run[saved_at:])]
    assert [repr(finding) for finding in findings] == whole


class Repeated(Detector):
    """A user's detector: `update` alone, an attribute as its state, a symptom of its own."""

    name = "repeated-loss"

    def __init__(self) -> None:
        self._last: float | None = None

    def update(self, record: Record) -> list[Finding]:
        loss = record.signals.get("loss")
        last, self._last = self._last, loss
        return [finding(record, self.name)] if loss is not None and loss == last else []


def finding(record: Record, name: str) -> Finding:
    return Finding(
        detector=name,
        symptom=cast(Symptom, "loss repeated"),
        severity=Severity.WARN,
        signal="loss",
        step=record.step,
        tick=record.tick,
        value=record.signals["loss"],
    )


def test_a_detector_needs_nothing_but_update() -> None:
    loss = np.arange(3000.0)
    loss[[7, 2500]] = loss[[6, 2499]]
    for pieces in ([block(3000, loss=loss)], list(block(3000, loss=loss).cut(10))):
        detectors = DetectorSet([Repeated()])
        findings = [item for piece in pieces for item in detectors.update(piece)]
        assert [item.step for item in findings] == [7, 2500]
        assert {item.symptom for item in findings} == {"loss repeated"}


def test_two_detectors_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="used twice: repeated-loss"):
        DetectorSet([Repeated(), Repeated()])


class Failing(Detector):
    """Reports every loss, and raises where a test wants it to."""

    name = "failing"
    listens_to = KnownChange.CHANGED

    def __init__(self, fails_in: str, step: int = 120) -> None:
        self._fails_in = fails_in
        self._step = step

    def on_event(self, change: KnownChange) -> None:
        self._fail("on_event")

    def update(self, record: Record) -> list[Finding]:
        if record.step == self._step:
            self._fail("update")
        return [finding(record, self.name)]

    def state_dict(self) -> dict[str, Any]:
        self._fail("state_dict")
        return super().state_dict()

    def _fail(self, place: str) -> None:
        if place == self._fails_in:
            raise ValueError("no idea")


class FailingAtOnce(Failing):
    """The same with an `update_many` that raises."""

    def update_many(self, block: Block) -> list[Finding]:
        self._fail("update_many")
        return []


CUTS: list[Callable[[Block], list[Block]]] = [
    lambda run: [run],
    lambda run: list(run.cut(1)),
    lambda run: list(run.cut(SHORT + 1)),
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("place", ["update", "on_event"])
def test_a_detector_that_raises_is_reported_once_and_left_out(
    place: str, cut: Callable[[Block], list[Block]]
) -> None:
    run = block(300, loss=np.repeat(np.arange(150.0), 2), events=[at("planned change", 120)])
    detectors = DetectorSet([Failing(place), Repeated()])
    findings = [item for piece in cut(run) for item in detectors.update(piece)]
    assert detectors.failures == [
        "detector 'failing' failed at step 120 (ValueError: no idea) and was left out"
    ]
    assert [item.step for item in findings if item.detector == "failing"] == list(range(120))
    assert len([item for item in findings if item.detector == "repeated-loss"]) == 150
    assert [detector.name for detector in detectors.detectors] == ["repeated-loss"]


def test_a_failure_among_many_records_is_reported_with_their_steps() -> None:
    detectors = DetectorSet([FailingAtOnce("update_many"), Repeated()])
    run = block(300, loss=1.0, events=[at("planned change", 120)])
    assert len(detectors.update(run)) == 299
    assert detectors.failures == [
        "detector 'failing' failed in steps 0 to 119 (ValueError: no idea) and was left out"
    ]


def test_a_detector_that_cannot_be_saved_is_left_out_and_stays_so() -> None:
    detectors = DetectorSet([Failing("state_dict"), Repeated()])
    detectors.update(block(10, loss=1.0))
    state = json.loads(json.dumps(detectors.state_dict()))
    assert detectors.failures == [
        "detector 'failing' failed at step 9 (ValueError: no idea) and was left out"
    ]
    loaded = DetectorSet([Failing("state_dict"), Repeated()])
    loaded.load_state_dict(state)
    assert loaded.failures == detectors.failures
    assert {item.detector for item in loaded.update(block(10, loss=1.0))} == {"repeated-loss"}


def test_a_detector_that_the_state_does_not_have_starts_without_a_past() -> None:
    before = detector_set()
    before.update(block(100, loss=1.0))
    after = detector_set(Repeated())
    after.load_state_dict(before.state_dict())
    findings = after.update(block(3, loss=1.0, step=np.arange(100, 103)))
    assert [item.step for item in findings] == [101, 102]


class Listener(Repeated):
    """A user's detector that counts how often the run went back."""

    name = "listener"
    listens_to = KnownChange.WENT_BACK

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def on_event(self, change: KnownChange) -> None:
        self.times += change is KnownChange.WENT_BACK


def test_a_detector_hears_what_it_listens_to_also_right_after_a_save() -> None:
    attempt = np.asarray(np.arange(50) >= 30, dtype=np.int64)
    run = block(50, loss=np.arange(50.0), attempt=attempt)
    first, second = Listener(), Listener()
    before, after = detector_set(first), detector_set(second)
    before.update(run[:30])
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    after.update(run[30:])
    assert (first.times, second.times) == (0, 1)
