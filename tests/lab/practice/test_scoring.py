"""The scores of answers."""

import math

import pytest

pytest.importorskip("torch")

from trimtab.core.actions import ActionKind
from trimtab.lab.practice.exercise import AnswerResult, PracticeAnswer, Stakes, mark_answers

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
