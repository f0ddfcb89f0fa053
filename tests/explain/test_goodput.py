"""Goodput and time: a step that was done again counts by its last time; what an incident cost."""

import dataclasses

import numpy as np
import pytest
from tests.kit.synthetic import add_spike, falling_loss

from trimtab.core.block import Block, Column, Event
from trimtab.core.events import UNDO
from trimtab.core.incidents import Incident
from trimtab.explain import time_use
from trimtab.explain.time_use import CAUSES, compute_goodput, compute_time_use, count_lost
from trimtab.judge import Judge


def run(step: list[int], *not_applied: tuple[int, int]) -> Block:
    """A run with these steps; `not_applied` are pairs of step and tick."""
    return Block.from_columns(
        {"loss": Column.complete(falling_loss(len(step)))},
        step=np.array(step),
        events=[
            Event(kind="step not applied", tick=tick, step=number) for number, tick in not_applied
        ],
    )


def judged(block: Block) -> tuple[Incident, ...]:
    judge = Judge()
    judge.update(block)
    judge.finish()
    return judge.incidents


@pytest.mark.parametrize(
    ("not_applied", "kept"),
    [
        ((), 6),
        ([(3, 3)], 6),
        ([(3, 2)], 6),  # the event comes before its record
        ([(3, 5)], 5),  # the last time that the step was done
        ([(5, 9)], 5),  # after the last record
        ([(7, 7)], 6),  # a step that was never recorded
    ],
)
def test_a_step_counts_by_the_last_time_that_it_was_done(
    not_applied: list[tuple[int, int]], kept: int
) -> None:
    assert compute_goodput(run([0, 1, 2, 3, 2, 3, 4, 5], *not_applied)).steps_kept == kept


def test_steps_after_a_destructive_update_are_lost() -> None:
    loss = falling_loss(20)
    loss[12:] = np.nan
    block = Block.from_columns({"loss": Column.complete(loss)}, step=np.arange(20))
    assert compute_goodput(block, judged(block)).steps_kept == 12


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
    # Step 5 was only done with broken weights.
    assert compute_goodput(block, judged(block)).steps_kept == 5


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


def test_the_time_of_a_run_by_cause() -> None:
    # One second a step, and at some steps more.
    step = np.array([*range(40), *range(30, 60)])
    extra = {5: ("checkpoint", 4.0), 10: ("evaluation", 7.0), 15: ("stalled", 9.0)}
    seconds = np.ones(70)
    seconds[0] = 0.0
    for row, (_, more) in extra.items():
        seconds[row] += more
    seconds[40] += 100.0  # down, before step 30 is made again
    data, discarded = np.zeros(70), np.zeros(70)
    data[20:30] = 0.2
    discarded[50:52] = 1.0
    events = [
        Event(kind=kind, tick=row, step=int(step[row]))
        for row, (kind, _) in extra.items()
        if kind != "stalled"
    ]
    events.append(Event(kind="resume", tick=40, step=30))
    events.append(Event(kind="undo", tick=60, step=50, facts={"updates_lost": 3}))
    block = Block.from_columns(
        {
            "loss": Column.complete(falling_loss(70)),
            "clock": Column.complete(1e9 + np.cumsum(seconds)),
            "data_seconds": Column.complete(data),
            "discarded": Column.complete(discarded),
        },
        step=step,
        attempt=np.repeat([0, 1], [40, 30]),
        events=events,
    )
    use = compute_time_use(block)
    assert use is not None
    expected = {
        "training": 52.0,
        "data": 2.0,
        "checkpoint": 4.0,
        "evaluation": 7.0,
        "discarded": 2.0,
        "undone": 3.0,
        "restart": 110.0,
        "in vain": 0.0,
        "stalled": 9.0,
    }
    assert tuple(use.seconds) == CAUSES
    assert {name: round(value, 3) for name, value in use.seconds.items()} == expected
    assert round(use.lost, 4) == round(119 / 189, 4)
    assert "58.2 % restart" in str(use)
    assert compute_time_use(run([0, 1, 2])) is None


def test_the_time_of_a_long_run_is_split_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    clock = np.cumsum(draw.exponential(1.0, 3000))
    waited = Column(draw.exponential(0.2, 3000), draw.random(3000) < 0.3)
    events = [Event(kind="checkpoint", tick=at, step=at) for at in range(100, 3000, 400)]
    columns = {"loss": Column.complete(falling_loss(3000)), "clock": Column.complete(clock)}
    block = Block.from_columns(
        {**columns, "data_seconds": waited}, step=np.arange(3000), events=events
    )
    whole = compute_time_use(block)
    monkeypatch.setattr(time_use, "PIECE", time_use.WINDOW)
    pieces = compute_time_use(block)
    assert whole is not None
    assert pieces is not None
    assert whole.seconds["data"] > 100
    assert pieces.seconds == pytest.approx(whole.seconds)
    assert pieces.lost_of_late == pytest.approx(whole.lost_of_late)


def test_an_incident_that_passes_costs_no_step_and_an_undo_its_updates() -> None:
    columns = {"loss": Column.complete(add_spike(falling_loss(800), 600))}
    block = Block.from_columns(columns, step=np.arange(800))
    (incident,) = judged(block)
    assert count_lost(incident, block) == 0
    undo = Event(kind=UNDO, tick=600 + 3, step=600 + 3, facts={"updates_lost": 3})
    undone = dataclasses.replace(block, events=(undo,))
    goodput = compute_goodput(undone)
    assert count_lost(incident, undone) == 3 == goodput.steps_done - goodput.steps_kept
    # One that reaches back to before the onset takes those updates too.
    undo = dataclasses.replace(undo, facts={"updates_lost": 10})
    assert count_lost(incident, dataclasses.replace(block, events=(undo,))) == 10
