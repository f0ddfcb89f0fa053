"""The exercise of a seed."""

import pytest

pytest.importorskip("torch")

from trimtab.core.errors import ConfigError
from trimtab.lab.practice.exercise import MIN_STEPS, STEPS, Exercise, ExerciseOrigin
from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.trainer.intervention import Base

MANY = [Exercise.from_seed(seed) for seed in range(300)]


def test_a_seed_is_one_exercise_and_a_different_seed_a_different_one() -> None:
    assert Exercise.from_seed(7) == Exercise.from_seed(7)
    assert len({(one.scenario.kind, one.onset, one.decision_step) for one in MANY}) > 250


def test_every_origin_is_drawn_and_some_exercises_have_no_fault() -> None:
    assert {one.origin for one in MANY} == set(ExerciseOrigin)
    harmless = [one for one in MANY if not one.intervention().is_fault]
    assert 0.15 < len(harmless) / len(MANY) < 0.35
    assert {one.scenario.required_base for one in MANY} == {Base.PLAIN, Base.FP16, Base.RESUME}


@pytest.mark.parametrize("steps", [MIN_STEPS, STEPS])
def test_there_is_a_good_checkpoint_before_the_onset_and_time_after_the_decision(
    steps: int,
) -> None:
    for seed in range(100):
        one = Exercise.from_seed(seed, steps)
        assert 0 < one.last_good <= one.onset < one.decision_step < one.steps
        assert one.checkpoints[-1] <= one.decision_step
        assert one.steps - one.decision_step >= steps // 5
        assert one.intervention().onset == one.onset


def test_a_run_that_is_resumed_has_its_checkpoint_at_the_onset() -> None:
    resumed = [one for one in MANY if one.is_resumed]
    assert resumed
    assert all(one.last_good == one.onset for one in resumed)


def test_no_exercise_needs_settings_of_its_own_or_several_ranks() -> None:
    # The checkpoint before the onset must be one of the same run without the fault.
    for one in MANY:
        kind = KINDS[one.scenario.kind]
        assert not (kind.from_start and kind.is_fault)
        assert one.intervention().settings(one.config()) == one.config()


@pytest.mark.parametrize(("seed", "steps", "word"), [(-1, STEPS, "seed"), (0, 47, "steps")])
def test_impossible_exercises_are_refused(seed: int, steps: int, word: str) -> None:
    with pytest.raises(ConfigError, match=f"{word} must"):
        Exercise.from_seed(seed, steps)
