"""Faults in the optimizer: its moments, its settings, and weights that it does not update."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, STEPS, Bench, differing

from trimtab.lab.faults.training_faults import Frozen, LargeEpsilon, StaleMoment, StrongDecay


def test_f07_shrinks_the_second_moment_and_makes_it_slow(bench: Bench) -> None:
    fault = StaleMoment(onset=ONSET, severity=1.0, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    seconds = {name for name in clean.state[ONSET] if name.endswith("exp_avg_sq")}
    assert differing(run.state[ONSET], clean.state[ONSET]) == seconds
    for name in seconds:
        shrunk = clean.state[ONSET][name] / np.float32(fault.strength)
        np.testing.assert_allclose(run.state[ONSET][name], shrunk, rtol=1e-6)
    betas = {step: {group["betas"] for group in run.groups[step]} for step in range(STEPS)}
    assert betas == {s: {(0.9, 0.95 if s < ONSET else 0.9999)} for s in range(STEPS)}
    assert fault.truth == {"beta2": 0.9999}
    assert not differing(run.weights[ONSET], clean.weights[ONSET])


def test_f08_sets_epsilon_and_nothing_else(bench: Bench) -> None:
    fault = LargeEpsilon(onset=ONSET, severity=0.5, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    for step in range(STEPS):
        epsilon = 1e-8 if step < ONSET else fault.strength
        assert run.groups[step] == [group | {"eps": epsilon} for group in clean.groups[step]]
    assert not differing(run.state[ONSET], clean.state[ONSET])
    assert fault.truth == {"epsilon_before": 1e-8}


def test_f23_multiplies_the_decay_of_what_decays(bench: Bench) -> None:
    fault = StrongDecay(onset=ONSET, severity=1.0, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    for step in range(STEPS):
        factor = 1.0 if step < ONSET else fault.strength
        assert run.groups[step] == [
            group | {"weight_decay": group["weight_decay"] * factor} for group in clean.groups[step]
        ]
    decays = [group["weight_decay"] for group in run.groups[ONSET]]
    assert decays == [pytest.approx(30.0), 0.0]
    assert fault.truth == {"weight_decay": decays[0]}


@pytest.mark.parametrize(("severity", "frozen"), [(0.0, 2), (1.0, 14)])
def test_f19_freezes_some_tensors_and_the_others_move(
    bench: Bench, severity: float, frozen: int
) -> None:
    fault = Frozen(onset=ONSET, severity=severity, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    blocks = {name for name in clean.weights[0] if name.startswith("blocks.")}
    chosen = set(fault.truth["parameters"])
    assert len(blocks) == 14
    assert len(chosen) == frozen
    assert chosen <= blocks
    everything = set(clean.weights[0])
    for step in range(STEPS - 1):
        moved = differing(run.weights[step], run.weights[step + 1])
        assert moved == (everything if step < ONSET else everything - chosen), step
    assert set(run.gradients[ONSET]) == everything - chosen
