"""Faults in a resume: what differs from the state at the stop."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.kit.cases import some_of
from tests.lab.observing import ONSET, STEPS, Bench, differing
from tests.lab.training import per_step

from trimtab.core import signals
from trimtab.lab.faults.machine_faults import WrongPosition, WrongWeights
from trimtab.lab.faults.training_faults import StateLost


@pytest.mark.parametrize(("severity", "lost"), some_of([(0.0, 4), (1.0, 16)], (0.0, 4)))
def test_f06_loses_the_moments_of_some_and_keeps_the_others(
    bench: Bench, severity: float, lost: int
) -> None:
    fault = StateLost(onset=ONSET, severity=severity, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    assert len(clean.weights[0]) == 16
    assert len(fault.truth["parameters"]) == lost
    kinds = ("step", "exp_avg", "exp_avg_sq")
    gone = {f"{name} {kind}" for name in fault.truth["parameters"] for kind in kinds}
    assert clean.state[ONSET].keys() - run.state[ONSET].keys() == gone
    assert differing(run.state[ONSET], clean.state[ONSET]) == gone
    assert not differing(run.weights[ONSET], clean.weights[ONSET])
    assert not differing(run.state[ONSET - 1], clean.state[ONSET - 1])
    # Adam counts its steps from 0 again.
    counts = {name: run.state[ONSET + 1][f"{name} step"] for name in fault.truth["parameters"]}
    assert set(map(float, counts.values())) == {1.0}


@pytest.mark.parametrize(("severity", "source"), some_of([(0.0, 7), (0.5, 6), (1.0, 1)], (0.5, 6)))
def test_f18_resumes_with_old_weights_and_everything_else_current(
    bench: Bench, severity: float, source: int
) -> None:
    fault = WrongWeights(onset=ONSET, severity=severity, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    assert fault.truth == {"weights_of_step": source}
    assert not differing(run.weights[ONSET], clean.weights[source])
    assert differing(run.weights[ONSET], clean.weights[ONSET])
    assert not differing(run.state[ONSET], clean.state[ONSET])
    assert run.groups[ONSET] == clean.groups[ONSET]
    assert (run.tokens[ONSET] == clean.tokens[ONSET]).all()


def test_f18d_sees_batches_a_second_time(bench: Bench) -> None:
    fault = WrongPosition(onset=ONSET, severity=0.0, seed=0)
    assert fault.strength == 10 > ONSET  # so it goes back to the first batch
    run, clean = bench.pair(fault)
    assert fault.truth == {"data_positions": list(range(ONSET))}
    found, expected = (per_step(one.block, signals.FINGERPRINT) for one in (run, clean))
    again = {step: step if step < ONSET else step - ONSET for step in range(STEPS)}
    assert found == {step: expected[source] for step, source in again.items()}
    assert len(set(expected.values())) == STEPS
    assert not differing(run.loop.weights[ONSET], clean.loop.weights[ONSET])
    assert not differing(run.loop.state[ONSET], clean.loop.state[ONSET])
    assert np.array_equal(run.loop.targets[ONSET], clean.loop.targets[0])


@pytest.mark.slow
def test_f18d_continues_with_new_batches_after_the_repeated_ones(bench: Bench) -> None:
    fault = WrongPosition(onset=ONSET, severity=0.0, seed=0)
    run, clean = bench.pair(fault, steps=ONSET + 12)
    found, expected = (per_step(one.block, signals.FINGERPRINT) for one in (run, clean))
    back = len(fault.truth["data_positions"])
    assert [found[ONSET + back + n] for n in range(4)] == [expected[ONSET + n] for n in range(4)]
