"""Which exercise a seed stands for."""

import pytest

pytest.importorskip("torch")

from trimtab.core.errors import ConfigError
from trimtab.lab.practice.exercise import FEWEST_STEPS, STEPS, Exercise, Home
from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.trainer.disturbance import Base

MANY = [Exercise.of_seed(seed) for seed in range(300)]


def test_a_seed_is_one_exercise_and_another_seed_another() -> None:
    assert Exercise.of_seed(7) == Exercise.of_seed(7)
    assert len({(one.scenario.kind, one.onset, one.asked) for one in MANY}) > 250


def test_every_home_is_drawn_and_some_exercises_have_no_fault() -> None:
    assert {one.home for one in MANY} == set(Home)
    harmless = [one for one in MANY if not one.disturbance().is_fault]
    assert 0.15 < len(harmless) / len(MANY) < 0.35
    assert {one.scenario.needs for one in MANY} == {Base.PLAIN, Base.FP16, Base.RESUME}


@pytest.mark.parametrize("steps", [FEWEST_STEPS, STEPS])
def test_there_is_a_good_checkpoint_before_the_onset_and_time_after_the_question(
    steps: int,
) -> None:
    for seed in range(100):
        one = Exercise.of_seed(seed, steps)
        assert 0 < one.last_good <= one.onset < one.asked < one.steps
        assert one.checkpoints[-1] <= one.asked
        assert one.steps - one.asked >= steps // 5
        assert one.disturbance().onset == one.onset


def test_a_run_that_is_resumed_has_its_checkpoint_at_the_onset() -> None:
    resumed = [one for one in MANY if one.is_resumed]
    assert resumed
    assert all(one.last_good == one.onset for one in resumed)


def test_no_exercise_needs_settings_of_its_own_or_several_ranks() -> None:
    # The checkpoint before the onset must be one of the same run without the fault.
    for one in MANY:
        kind = KINDS[one.scenario.kind]
        assert not (kind.from_start and kind.is_fault)
        assert one.disturbance().settings(one.config()) == one.config()


@pytest.mark.parametrize(("seed", "steps", "word"), [(-1, STEPS, "seed"), (0, 47, "steps")])
def test_what_cannot_be_is_refused(seed: int, steps: int, word: str) -> None:
    with pytest.raises(ConfigError, match=f"{word} must"):
        Exercise.of_seed(seed, steps)
