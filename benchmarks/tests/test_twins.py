"""Runs compared with their twins, on curves with a known truth."""

import math

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from benchmarks.twins import Pair

from trimtab.core.block import Block, Record

STEPS, ONSET = 300, 150


def block(**curves: np.ndarray) -> Block:
    records = []
    for step in range(STEPS):
        values_at_step = {name: float(values[step]) for name, values in curves.items()}
        records.append(Record(step=step, tick=step, signals=values_at_step))
    return Block.from_records(records)


def noise(seed: int, level: float, sd: float) -> np.ndarray:
    return level + sd * np.random.default_rng(seed).standard_normal(STEPS)


LOSS = noise(1, 3.0, 0.05)
NORM = noise(2, 1.0, 0.1)
TWIN = block(loss=LOSS, grad_norm=NORM)


def changed(values: np.ndarray, first: int, last: int, by: float) -> np.ndarray:
    values = values.copy()
    values[first:last] += by
    return values


def test_equal_runs_have_no_moves_and_nothing_to_recover_from() -> None:
    pair = Pair(TWIN, TWIN, ONSET)
    assert pair.moves() == []
    assert pair.steps_to_recover() == 0
    assert pair.final_difference() == 0.0


def test_the_first_signal_that_leaves_its_twin_comes_first() -> None:
    run = block(
        loss=changed(LOSS, ONSET + 3, STEPS, 1.0), grad_norm=changed(NORM, ONSET + 1, STEPS, 2.0)
    )
    pair = Pair(run, TWIN, ONSET)
    assert [(move.signal, move.step) for move in pair.moves()] == [
        ("grad_norm", ONSET + 1),
        ("loss", ONSET + 3),
    ]
    assert pair.moves()[0].sigmas == pytest.approx(20, rel=0.4)  # 2.0 by a deviation of 0.1


def test_less_than_five_sigma_is_not_a_move() -> None:
    run = block(loss=LOSS, grad_norm=changed(NORM, ONSET, STEPS, 0.25))
    assert Pair(run, TWIN, ONSET).moves() == []


def test_a_nan_is_a_move_of_any_size() -> None:
    loss = LOSS.copy()
    loss[ONSET + 2] = np.nan
    move = Pair(block(loss=loss, grad_norm=NORM), TWIN, ONSET).moves()[0]
    assert (move.signal, move.step, move.sigmas) == ("loss", ONSET + 2, math.inf)


def test_a_spike_that_recovers_and_one_that_stays() -> None:
    back = Pair(block(loss=changed(LOSS, ONSET, ONSET + 20, 1.0)), TWIN, ONSET)
    assert back.steps_to_recover() == pytest.approx(30, abs=3)  # means of 10 steps
    assert back.peak_ratio("loss") == pytest.approx(4 / 3, rel=0.05)
    assert back.final_difference() == 0.0
    stays = Pair(block(loss=changed(LOSS, ONSET, STEPS, 0.2)), TWIN, ONSET)
    assert stays.steps_to_recover() is None
    assert stays.final_difference() == pytest.approx(0.2)


def test_broken_and_missing_peaks_are_distinguished() -> None:
    loss = LOSS.copy()
    loss[ONSET:] = np.nan
    pair = Pair(block(loss=loss), TWIN, ONSET)
    assert pair.peak_ratio("loss") == math.inf
    assert math.isnan(pair.peak_ratio("loss_scale"))  # never recorded
    assert pair.steps_to_recover() is None


def test_a_clock_is_compared_with_itself() -> None:
    seconds = np.abs(noise(3, 0.01, 0.001))
    other = np.abs(noise(4, 0.012, 0.001))  # a machine of a different speed is not a fault
    slow = seconds.copy()
    slow[ONSET + 5] = 1.0
    twin = block(loss=LOSS, step_seconds=other)
    assert Pair(block(loss=LOSS, step_seconds=seconds), twin, ONSET).moves() == []
    moves = Pair(block(loss=LOSS, step_seconds=slow), twin, ONSET).moves()
    assert [(move.signal, move.step) for move in moves] == [("step_seconds", ONSET + 5)]


def test_a_fault_from_the_first_step_is_measured_against_the_twin() -> None:
    run = block(loss=LOSS + 2.0, grad_norm=NORM)
    pair = Pair(run, TWIN, 0)
    assert pair.moves()[0].signal == "loss"
    assert pair.peak_ratio("loss") == pytest.approx(5 / 3, rel=0.05)
