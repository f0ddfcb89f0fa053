"""Every intervention: equality with the twin before its onset, and its severity."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.cases import some_of
from tests.lab.training import first_difference, journal

from trimtab.core.block import Block
from trimtab.core.causes import Cause
from trimtab.core.errors import ConfigError
from trimtab.lab.scenarios.catalogue import FAULTS, HARMLESS, KINDS, NATURAL
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.scenarios.suite import read_truth

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

Trial = Callable[[Scenario], Path]

CLOCK_ONLY = ("F16", "F17", "right-resume", "evaluation")
"""They take time and change no number. The mildest is enough here, to keep the tests fast."""

WITH_ONSET = [name for name, kind in KINDS.items() if not kind.from_start]
"""The others have a different rate, model or batch from their first step on, so they differ from
their twin at every step."""


def _scenario(kind: str) -> Scenario:
    return Scenario(kind=kind, seed=1, steps=16, severity=0.0 if kind in CLOCK_ONLY else 1.0)


IN_CI = ("F05", "F12", "F18")
"""A rate, a forward pass, a resume. tests/lab/faults compares the other ways to interfere with
their twin: batches, state, ranks, clock."""


@pytest.mark.parametrize("kind", some_of(WITH_ONSET, *IN_CI))
def test_a_run_is_bit_identical_to_its_twin_until_the_onset(kind: str, trial: Trial) -> None:
    scenario = _scenario(kind)
    run, twin = (journal(trial(one)) for one in (scenario, scenario.twin()))
    assert len(run) == len(twin) == scenario.steps
    # A long evaluation uses more batches, so its loss differs.
    besides = ("eval_loss",) if kind == "evaluation" else ()
    expected = None if kind in CLOCK_ONLY else scenario.onset
    assert first_difference(run, twin, besides) == expected
    assert _announced(twin) == []
    assert _announced(run) == ([scenario.onset] if KINDS[kind].planned else [])


def _announced(block: Block) -> list[int]:
    return [event.step for event in block.events if event.kind == "planned change"]


FROM_START = sorted({*KINDS} - {*WITH_ONSET} - {*NATURAL})


# One of a rate, one of a schedule, one of the batches.
@pytest.mark.parametrize("kind", some_of(FROM_START, "F21", "cooldown", "batch-ramp"))
def test_kinds_from_the_first_step_have_onset_0(kind: str, trial: Trial) -> None:
    scenario = _scenario(kind)
    run_dir = trial(scenario)
    assert read_truth(run_dir)["onset"] == 0
    run, twin = journal(run_dir), journal(trial(scenario.twin()))
    difference = first_difference(run, twin)
    # The constant rate of a cooldown differs from the cosine after the warm-up.
    assert difference == (scenario.config().warmup + 1 if kind == "cooldown" else 0)
    assert _announced(run) == ([scenario.onset] if KINDS[kind].planned else [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_higher_severity_is_a_greater_strength(kind: str) -> None:
    grades = [step / 20 for step in range(21)]
    strengths = [KINDS[kind](onset=100, severity=severity, seed=3).strength for severity in grades]
    assert strengths == sorted(strengths)
    # A cooldown ends at 0, and a warm-up at the onset, however severe.
    assert (strengths[0] < strengths[-1]) == (kind not in ("cooldown", "warmup-end"))


def test_a_kind_that_heals_has_an_end() -> None:
    made = {name: kind(onset=100, severity=0.5, seed=0) for name, kind in KINDS.items()}
    healing = {name for name, one in made.items() if one.heals}
    assert {name for name, one in made.items() if one.end is not None} == healing | {"F12"}
    for one in (made[name] for name in healing):
        assert one.end is not None
        assert [one.covers(step) for step in (99, 100, one.end - 1, one.end)] == [0, 1, 1, 0]


def test_the_catalogue_is_complete() -> None:
    assert {kind.cause for kind in FAULTS.values()} == {
        cause for cause in Cause if not cause.is_of_policy
    }
    for name, kind in FAULTS.items():
        assert kind.cause is not None
        assert name[:3] == kind.cause.id
    # F20 is in the catalogue of causes because it must be distinguished from faults.
    assert [name for name, kind in FAULTS.items() if not kind.is_fault] == ["F20"]
    assert all(kind.is_fault and kind.from_start for kind in NATURAL.values())
    assert not any(kind.is_fault for kind in HARMLESS.values())
    assert all(kind.title and kind.strength_name for kind in KINDS.values())


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"severity must be 0 to 1, got 1\.1"):
        KINDS["F01"](onset=1, severity=1.1, seed=0)
    with pytest.raises(ConfigError, match="onset must not be negative, got -1"):
        KINDS["F01"](onset=-1, severity=1.0, seed=0)
