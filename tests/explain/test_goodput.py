"""Goodput: a step that was done again counts by its last time."""

import dataclasses

import numpy as np
from tests.kit.synthetic import falling_loss

from trimtab.core.block import Block, Column, Event
from trimtab.explain.goodput import compute_goodput


def run(step: list[int], *not_applied: tuple[int, int]) -> Block:
    """A run with these steps; `not_applied` are pairs of step and tick."""
    return Block.from_columns(
        {"loss": Column.complete(falling_loss(len(step)))},
        step=np.array(step),
        events=[
            Event(kind="step not applied", tick=tick, step=number) for number, tick in not_applied
        ],
    )


def test_a_step_that_was_redone_and_applied_is_kept() -> None:
    steps = [0, 1, 2, 3, 2, 3, 4, 5]
    assert compute_goodput(run(steps)).steps_kept == 6
    assert compute_goodput(run(steps, (3, 3))).steps_kept == 6
    assert compute_goodput(run(steps, (3, 2))).steps_kept == 6  # the event comes before its record


def test_a_step_that_was_not_applied_the_last_time_is_lost() -> None:
    steps = [0, 1, 2, 3, 2, 3, 4, 5]
    assert compute_goodput(run(steps, (3, 5))).steps_kept == 5
    assert compute_goodput(run(steps, (5, 9))).steps_kept == 5  # after the last record
    assert compute_goodput(run(steps, (7, 7))).steps_kept == 6  # a step that was never recorded


def test_steps_after_a_destructive_update_are_lost() -> None:
    loss = falling_loss(20)
    loss[12:] = np.nan
    block = Block.from_columns({"loss": Column.complete(loss)}, step=np.arange(20))
    assert compute_goodput(block).steps_kept == 12


def test_a_nonfinite_loss_that_passes_costs_nothing_after_it() -> None:
    loss = falling_loss(20)
    loss[12] = np.inf
    block = Block.from_columns({"loss": Column.complete(loss)}, step=np.arange(20))
    assert compute_goodput(block).steps_kept == 20


def test_steps_of_a_destroyed_attempt_that_were_done_again_are_kept() -> None:
    step = np.array([0, 1, 2, 3, 4, 5, 2, 3, 4])
    loss = falling_loss(9)
    loss[3:6] = np.nan
    block = Block.from_columns(
        {"loss": Column.complete(loss)},
        step=step,
        attempt=np.array([0, 0, 0, 0, 0, 0, 1, 1, 1]),
    )
    assert compute_goodput(block).steps_kept == 5  # step 5 was only done with broken weights


def test_the_updates_of_an_undo_are_lost() -> None:
    # The records of the last steps are written after the event: it has the tick of the next one.
    event = Event(kind="undo", tick=4, step=6, facts={"updates_lost": 3})
    block = dataclasses.replace(run([0, 1, 2, 3, 4, 5, 6, 7]), events=(event,))
    assert compute_goodput(block).steps_kept == 5


def test_an_undo_is_of_the_attempt_that_goes_on() -> None:
    event = Event(kind="undo", tick=7, step=4, facts={"updates_lost": 2})
    block = dataclasses.replace(
        run([0, 1, 2, 3, 4, 1, 2, 3, 4]),
        events=(event,),
        attempt=np.array([0, 0, 0, 0, 0, 1, 1, 1, 1]),
    )
    assert compute_goodput(block).steps_kept == 3  # 0, 1 and 4
