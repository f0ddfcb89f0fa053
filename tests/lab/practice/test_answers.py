"""Answers that a learner can give, and those that are tried in every exercise."""

import pytest

pytest.importorskip("torch")

from trimtab.core.actions import ActionKind
from trimtab.core.errors import ConfigError
from trimtab.lab.practice.exercise import Exercise, PracticeAnswer, candidates, parse_answer

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
