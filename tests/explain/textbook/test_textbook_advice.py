import numpy as np
import pytest
from tests.kit.synthetic import add_spike, block_of

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.judge import Judge
from trimtab.rulesets import TEXTBOOK


def action_on(loss: np.ndarray, attempt: np.ndarray | None = None) -> ActionKind:
    block = block_of({"loss": loss})
    if attempt is not None:
        step = np.where(attempt > 0, block.step - int(np.argmax(attempt > 0)), block.step)
        block = Block.from_columns(block.columns, step=step, attempt=attempt)
    judge = Judge(rules=TEXTBOOK)
    judge.update(block)
    judge.finish()
    return judge.explain(judge.incidents[-1], block).action.kind


def calm(records: int) -> np.ndarray:
    return np.asarray(2.0 + np.tile([0.03, -0.03], records)[:records])


def test_a_loss_that_came_back_needs_no_rollback() -> None:
    assert action_on(add_spike(calm(400), 300)) is ActionKind.WAIT


@pytest.mark.parametrize("tail", [calm(100) + 1.0, np.full(100, np.nan)])
def test_a_loss_that_did_not_come_back_is_rolled_back(tail: np.ndarray) -> None:
    assert action_on(np.concatenate([calm(300), tail])) is ActionKind.ROLL_BACK


def test_a_log_that_ends_too_early_means_wait() -> None:
    assert action_on(add_spike(calm(302), 300)) is ActionKind.WAIT


def test_what_recurs_after_a_restart_needs_a_lower_learning_rate() -> None:
    once = add_spike(calm(400), 300)
    attempt = np.repeat([0, 1], 400)
    assert action_on(np.concatenate([once, once]), attempt) is ActionKind.LOWER_LR


def test_the_same_place_in_the_same_attempt_is_no_recurrence() -> None:
    twice = add_spike(add_spike(calm(700), 300), 450)
    assert action_on(twice) is ActionKind.WAIT
