"""Judges for agents: the cases, the score, the rules of others, the agent without a model."""

import numpy as np
from benchmarks.agents.answers import (
    Answer,
    is_right,
    score,
)
from benchmarks.agents.cases import ACT, Case
from benchmarks.agents.contenders import (
    alarm_answer,
    marin_alarms,
    wandb_answer,
    wandb_diagnosis,
)

HEALTHY = Case(file="a.csv", group="healthy", source="a", is_held_out=False, is_incident=False)
DEAD = Case(
    file="b.csv",
    group="lost",
    source="b",
    is_held_out=True,
    is_incident=True,
    onsets=((300, 340),),
    classes=("dead",),
    acts=ACT,
)


def test_an_answer_is_right_in_all_or_wrong() -> None:
    calm = Answer(verdict="healthy")
    assert is_right(HEALTHY, calm)
    assert not is_right(HEALTHY, Answer(verdict="healthy", act="stop"))
    assert not is_right(HEALTHY, Answer(verdict="incident", onset=3))
    assert not is_right(HEALTHY, None)
    good = Answer(verdict="incident", onset=310, named="dead", act="roll back")
    assert is_right(DEAD, good)
    assert not is_right(DEAD, Answer(verdict="incident", onset=200, act="stop"))
    assert not is_right(DEAD, Answer(verdict="incident", onset=310, act="wait"))
    row = score("x", [HEALTHY, DEAD], {"a.csv": calm, "b.csv": good})
    assert [cell.split(";")[0] for cell in row[1:]] == [
        *("1 of 1", "0 of 1", "1 of 1", "1 of 1", "1 of 1", "1 of 1"),
        "2 of 2",
    ]
    assert score("x", [HEALTHY, DEAD], {})[-1].startswith("0 of 2")


def test_the_rule_of_wandb_says_what_it_was_written_to_say() -> None:
    flat, down, up = np.full(100, 2.0), np.linspace(9, 1, 100), np.linspace(1, 3, 100)
    assert wandb_diagnosis(flat)["diagnosis"] == "converged"
    assert wandb_diagnosis(down)["diagnosis"] == "training"
    assert wandb_diagnosis(up)["diagnosis"] == "diverging"
    assert wandb_diagnosis(flat[:9])["diagnosis"] == "insufficient_data"
    # The second half is lower, and the last tenth is within 5 % of it.
    assert wandb_diagnosis(np.where(np.arange(100) < 50, 3.0, 2.0))["diagnosis"] == "converged"
    lost = np.where(np.arange(100) < 90, down, np.nan)
    assert wandb_diagnosis(lost)["nan_warnings"] == {"loss": 10}
    assert wandb_answer(wandb_diagnosis(lost)).act == "stop"
    assert wandb_answer(wandb_diagnosis(flat)).act == "stop"
    assert wandb_answer(wandb_diagnosis(flat), stops_converged=False).act == "continue"


def test_the_alert_of_marin_is_quiet_for_a_spike_and_fires_for_a_level() -> None:
    draw = np.random.default_rng(0)
    loss = 3 + 0.01 * draw.standard_normal(300)
    spiked, raised, lost = loss.copy(), loss.copy(), loss.copy()
    spiked[200:204] += 5
    raised[200:] += 1
    lost[200] = np.nan
    assert not marin_alarms(loss).any()
    assert not marin_alarms(spiked).any()
    first = int(np.flatnonzero(marin_alarms(raised))[0])
    assert first == 204  # the lowest of five records
    assert np.flatnonzero(marin_alarms(lost))[0] == 200
    answer = alarm_answer(np.arange(300), marin_alarms(raised))
    assert (answer.verdict, answer.onset) == ("incident", 204)
