"""Faults in the learning rate: what the optimizer uses at each step."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, STEPS, Bench, seed_where
from tests.lab.training import per_step

from trimtab.core import signals
from trimtab.lab.faults.training_faults import RateJump, RateTooHigh, WrongSchedule

EXACT = 1e-12
"""Relative: a product of three numbers is rounded in a different order; nothing else differs."""

STEPS_OF_JUMP = 5


def test_f05_multiplies_the_rate_from_onset_to_end(bench: Bench) -> None:
    seed = seed_where(RateJump, lambda fault: fault.steps == STEPS_OF_JUMP)
    fault = RateJump(onset=ONSET, severity=0.5, seed=seed)
    run, clean = (per_step(one.block, signals.LR) for one in bench.pair(fault))
    assert fault.end == ONSET + STEPS_OF_JUMP < STEPS
    for step in range(STEPS):
        if fault.covers(step):
            assert run[step] == pytest.approx(clean[step] * fault.strength, rel=EXACT)
        else:
            assert run[step] == clean[step]


def test_f21_multiplies_the_rate_of_the_whole_run(bench: Bench) -> None:
    fault = RateTooHigh(onset=ONSET, severity=0.5, seed=0)
    run, clean = (per_step(one.block, signals.LR) for one in bench.pair(fault))
    expected = {step: rate * fault.strength for step, rate in clean.items()}
    assert run == pytest.approx(expected, rel=EXACT)
    assert fault.truth == {"lr": pytest.approx(1e-3 * fault.strength)}


def test_f24_rises_where_it_should_fall(bench: Bench) -> None:
    fault = WrongSchedule(onset=ONSET, severity=0.5, seed=0)
    assert fault.strength == pytest.approx(1.0)
    run, clean = (per_step(one.block, signals.LR) for one in bench.pair(fault))
    last = clean[ONSET - 1]
    for step in range(STEPS):
        if step < ONSET:
            assert run[step] == clean[step]
        else:  # with a power of 1, by the factor by which it should have fallen
            assert run[step] / last == pytest.approx(last / clean[step], rel=EXACT)
            assert run[step] > run[step - 1]
