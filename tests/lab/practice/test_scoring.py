"""What an answer is worth."""

import math

import pytest

pytest.importorskip("torch")

from trimtab.core.actions import ActionKind
from trimtab.lab.practice.answers import Answer
from trimtab.lab.practice.scoring import Result, Stakes, mark

STAKES = Stakes(loss_before=5.0, loss_mended=4.0, steps=100)
WAIT, STOP = Answer(kind=ActionKind.WAIT), Answer(kind=ActionKind.STOP)
BACK = Answer(kind=ActionKind.ROLL_BACK, number=20)
STOPPED = Result(eval_loss=5.0, steps=0)


def scores(**results: Result) -> dict[str, int]:
    answers = {"wait": WAIT, "back": BACK, "stop": STOP}
    names = {answer: name for name, answer in answers.items()}
    graded = mark({answers[name]: result for name, result in results.items()}, STAKES)
    return {names[one.answer]: one.score for one in graded}


def test_in_a_healthy_run_waiting_is_best_and_going_back_costs_its_steps() -> None:
    healthy = Result(eval_loss=4.0, steps=80)
    told = scores(stop=STOPPED, back=Result(eval_loss=4.0, steps=100), wait=healthy)
    # 20 steps are a fifth of the rest; at half their worth, by half of what was to be had.
    assert told == {"wait": 100, "back": 80, "stop": 0}
    assert list(told) == ["wait", "back", "stop"]


def test_where_nothing_more_is_learned_stopping_is_best() -> None:
    told = scores(wait=Result(eval_loss=5.0, steps=80), stop=STOPPED)
    assert told == {"stop": 100, "wait": 20}


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_worth_nothing(lost: float) -> None:
    told = scores(
        wait=Result(eval_loss=lost, steps=80), back=Result(eval_loss=4.0, steps=100), stop=STOPPED
    )
    assert told == {"back": 100, "stop": 0, "wait": 0}


def test_of_equal_answers_the_milder_comes_first() -> None:
    same = Result(eval_loss=4.0, steps=80)
    assert list(scores(wait=same, back=same)) == ["wait", "back"]


def test_a_rest_that_brings_nothing_still_has_a_scale() -> None:
    stakes = Stakes(loss_before=4.0, loss_mended=4.1, steps=10)
    graded = mark({WAIT: Result(eval_loss=4.1, steps=8), STOP: STOPPED}, stakes)
    assert [one.score for one in graded] == [100, 0]
