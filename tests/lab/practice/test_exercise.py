"""The exercise of a seed, the answers that a learner can give, and their scores."""

import math

import pytest

from trimtab.core.actions import ActionKind
from trimtab.core.errors import ConfigError
from trimtab.lab.practice.exercise import (
    MIN_STEPS,
    STEPS,
    AnswerResult,
    Exercise,
    ExerciseOrigin,
    PracticeAnswer,
    Stakes,
    candidates,
    mark_answers,
    parse_answer,
)
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


LATE = Exercise.from_kind("F24", 3)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("wait", PracticeAnswer(kind=ActionKind.WAIT)),
        ("  STOP ", PracticeAnswer(kind=ActionKind.STOP)),
        ("skip 12", PracticeAnswer(kind=ActionKind.SKIP, number=12)),
        ("skip", PracticeAnswer(kind=ActionKind.SKIP, number=LATE.decision_step - LATE.last_good)),
        ("roll  back 60", PracticeAnswer(kind=ActionKind.ROLL_BACK, number=60)),
        ("rollback", PracticeAnswer(kind=ActionKind.ROLL_BACK, number=LATE.checkpoints[-1])),
        (
            "rollback --to 60 --skip 70:75 --lr-factor 0.5",
            PracticeAnswer(kind=ActionKind.ROLL_BACK, number=60, skip=(70, 75), lr_factor=0.5),
        ),
        ("lower 2.5", PracticeAnswer(kind=ActionKind.LOWER_LR, number=2.5)),
        ("lower LR", PracticeAnswer(kind=ActionKind.LOWER_LR, number=3)),
    ],
)
def test_an_answer_is_parsed(text: str, answer: PracticeAnswer) -> None:
    assert parse_answer(text, LATE) == answer
    assert parse_answer(str(answer), LATE) == answer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "choose from: wait, discard"),
        ("panic", "choose from: wait, discard"),
        ("wait 3", "'wait' takes no number; got 3"),
        ("skip 0", "1 to 1000 batches; got 0"),
        ("skip 2.5", "1 to 1000 batches; got 2.5"),
        ("roll back 61", "the step of a checkpoint: 30, 60"),
        ("lower 1", "above 1, up to 1000; got 1"),
        ("lower nan", "choose from"),
        ("wait --skip 3:5", "and no --skip"),
        ("roll back 60 --skip 75:70", "A before B"),
        ("roll back 60 --lr-factor 0.0", "a number above 0"),
    ],
)
def test_an_invalid_answer_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_answer(text, LATE)


def test_every_action_is_tried_and_a_checkpoint_that_is_too_new_as_well() -> None:
    assert LATE.checkpoints[-1] > LATE.onset, "or this shows nothing"
    tried = candidates(LATE)
    assert {one.kind for one in tried} == set(ActionKind)
    back = [one.number for one in tried if one.kind is ActionKind.ROLL_BACK]
    assert back == [LATE.checkpoints[-1], LATE.last_good]
    assert all(parse_answer(str(one), LATE) == one for one in tried)


STAKES = Stakes(loss_before=5.0, loss_fixed=4.0, steps=100)
WAIT, STOP = PracticeAnswer(kind=ActionKind.WAIT), PracticeAnswer(kind=ActionKind.STOP)
BACK = PracticeAnswer(kind=ActionKind.ROLL_BACK, number=20)
STOPPED = AnswerResult(eval_loss=5.0, steps=0)


def scores(**results: AnswerResult) -> dict[str, int]:
    answers = {"wait": WAIT, "back": BACK, "stop": STOP}
    names = {answer: name for name, answer in answers.items()}
    graded = mark_answers({answers[name]: result for name, result in results.items()}, STAKES)
    return {names[one.answer]: one.score for one in graded}


def test_in_a_healthy_run_waiting_is_best_and_rolling_back_costs_steps() -> None:
    healthy = AnswerResult(eval_loss=4.0, steps=80)
    found = scores(stop=STOPPED, back=AnswerResult(eval_loss=4.0, steps=100), wait=healthy)
    # 20 steps are a fifth of the rest, priced at half; the scale is half of the gain.
    assert found == {"wait": 100, "back": 80, "stop": 0}
    assert list(found) == ["wait", "back", "stop"]


def test_stopping_is_best_if_nothing_more_is_learned() -> None:
    found = scores(wait=AnswerResult(eval_loss=5.0, steps=80), stop=STOPPED)
    assert found == {"stop": 100, "wait": 20}


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_non_finite_weights_are_the_worst_result(lost: float) -> None:
    found = scores(
        wait=AnswerResult(eval_loss=lost, steps=80),
        back=AnswerResult(eval_loss=4.0, steps=100),
        stop=STOPPED,
    )
    assert found == {"back": 100, "stop": 0, "wait": 0}


def test_of_equal_answers_the_milder_comes_first() -> None:
    same = AnswerResult(eval_loss=4.0, steps=80)
    assert list(scores(wait=same, back=same)) == ["wait", "back"]


def test_without_any_gain_scores_still_have_a_scale() -> None:
    stakes = Stakes(loss_before=4.0, loss_fixed=4.1, steps=10)
    graded = mark_answers({WAIT: AnswerResult(eval_loss=4.1, steps=8), STOP: STOPPED}, stakes)
    assert [one.score for one in graded] == [100, 0]
