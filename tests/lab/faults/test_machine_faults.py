"""Faults of machines, ranks and restarts: which numbers differ, where, and that no other does."""

import statistics

import numpy as np
import pytest
import torch
from tests.kit.cases import some_of
from tests.lab.observing import ONSET, STEPS, STILL, Arrays, Bench, Observed, differing
from tests.lab.training import first_difference, per_step

from trimtab.core import signals
from trimtab.lab.faults.machine_faults import (
    BadDevice,
    GradientBitFlip,
    LoaderStall,
    OutOfSync,
    SlowRank,
    WeightBitFlip,
    WrongPosition,
    WrongWeights,
)
from trimtab.lab.faults.training_faults import StateLost

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

BITS = [(0.0, 23), (0.6, 28), (1.0, 30)]
"""Severity to bit."""


def _flipped_bits(one: Arrays, other: Arrays) -> list[tuple[str, int, int]]:
    found = []
    for name in sorted(differing(one, other)):
        bits = one[name].ravel().view(np.uint32) ^ other[name].ravel().view(np.uint32)
        for element in np.flatnonzero(bits).tolist():
            found += [(name, element, bit) for bit in range(32) if bits[element] >> bit & 1]
    return found


def _flip_in_truth(loop: Observed) -> tuple[str, int, int]:
    return loop.truth["tensor"], loop.truth["element"], loop.truth["bit"]


@pytest.mark.parametrize(("severity", "bit"), some_of(BITS, BITS[1]))
def test_one_bit_of_one_gradient_flips_at_one_step(bench: Bench, severity: float, bit: int) -> None:
    fault = GradientBitFlip(onset=ONSET, severity=severity, seed=bit)
    run, clean = (one.loop for one in bench.pair(fault, optimizer=STILL))
    flipped = {s: _flipped_bits(run.gradients[s], clean.gradients[s]) for s in range(STEPS)}
    assert flipped == {
        step: [_flip_in_truth(run)] if step == ONSET else [] for step in range(STEPS)
    }
    name, element, flipped_bit = _flip_in_truth(run)
    assert flipped_bit == bit
    assert run.truth["before"] == clean.gradients[ONSET][name].ravel()[element]
    assert run.truth["after"] == run.gradients[ONSET][name].ravel()[element]


@pytest.mark.parametrize(("severity", "bit"), some_of(BITS, BITS[2]))
def test_one_bit_of_one_weight_flips_and_stays(bench: Bench, severity: float, bit: int) -> None:
    fault = WeightBitFlip(onset=ONSET, severity=severity, seed=bit)
    run, clean = (one.loop for one in bench.pair(fault, optimizer=STILL))
    flipped = {s: _flipped_bits(run.weights[s], clean.weights[s]) for s in range(STEPS)}
    assert flipped == {
        step: [_flip_in_truth(run)] if step >= ONSET else [] for step in range(STEPS)
    }
    assert _flip_in_truth(run)[2] == bit


def test_torch_does_not_count_a_flip_as_written() -> None:
    """Hardware does not raise a tensor's version, and what finds flips goes by it."""
    weight = torch.ones(4, requires_grad=True)
    before = weight._version
    WeightBitFlip(onset=0, severity=1.0, seed=0)._flip("weight", weight, 2)
    assert weight[2] != 1
    assert weight._version == before


@pytest.mark.slow
def test_f14_corrupts_neighbouring_elements_in_a_gradient_of_the_last_rank(bench: Bench) -> None:
    fault = BadDevice(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(fault, optimizer=STILL, steps=24)
    hit = []
    for step in range(24):
        assert not differing(run.ranks[0].gradients[step], clean.ranks[0].gradients[step])
        found, expected = (one.ranks[1].gradients[step] for one in (run, clean))
        names = differing(found, expected)
        if not names:
            continue
        hit.append(step)
        (name,) = names
        changed = np.flatnonzero(found[name] != expected[name])
        assert changed[-1] - changed[0] < 64
        ratios = found[name].ravel()[changed] / expected[name].ravel()[changed]
        np.testing.assert_allclose(ratios, fault.strength, rtol=1e-5)
    assert hit[0] == ONSET
    assert 1 < len(hit) < 8  # one step in five, of 16
    assert run.ranks[0].truth == {}
    assert run.ranks[1].truth == {"rank": 1, "steps": hit}


def test_f15_moves_the_weights_of_the_last_rank(bench: Bench) -> None:
    fault = OutOfSync(onset=ONSET, severity=0.5, seed=0)
    run, clean = bench.pair(fault)
    for step in range(STEPS):
        apart = differing(run.ranks[0].weights[step], run.ranks[1].weights[step])
        assert apart == (set(clean.loop.weights[0]) if step >= ONSET else set())
        assert not differing(clean.ranks[0].weights[step], clean.ranks[1].weights[step])
    assert not differing(run.ranks[0].weights[ONSET], clean.loop.weights[ONSET])
    for name, usual in clean.loop.weights[ONSET].items():
        distance = run.ranks[1].weights[ONSET][name] - usual
        size = np.sqrt(np.mean(distance**2) / np.mean(usual**2))
        # A gain has 32 numbers: up to 50 % off by chance, 4 standard deviations.
        assert size == pytest.approx(fault.strength, rel=0.5 if usual.size == 32 else 0.1)
    assert [one.truth for one in run.ranks] == [{}, {"rank": 1}]


@pytest.mark.slow
def test_f17_makes_all_ranks_wait_for_the_last(bench: Bench) -> None:
    fault = SlowRank(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(fault)
    hit = range(ONSET, STEPS)
    assert all(run.ranks[1].seconds[step] >= fault.strength for step in hit)
    # The fastest of several: a busy machine makes any step slow, but not all of them.
    assert min(run.ranks[1].seconds[step] for step in range(ONSET)) < fault.strength
    assert min(run.ranks[0].seconds[step] for step in hit) < fault.strength
    slow, usual = (per_step(one.block, signals.STEP_SECONDS) for one in (run, clean))
    # Summed: a single step of the first rank may end early if the one before ended late.
    assert sum(slow[step] for step in hit) > 0.9 * len(hit) * fault.strength
    assert min(usual.values()) < fault.strength
    assert [one.truth for one in run.ranks] == [{}, {"rank": 1}]


@pytest.mark.slow
def test_f16_makes_four_batches_late_and_changes_no_number(bench: Bench) -> None:
    fault = LoaderStall(onset=ONSET, severity=0.0, seed=0)
    run, clean = bench.pair(fault, steps=ONSET + 26)
    late = [ONSET, ONSET + 5, ONSET + 10, ONSET + 15]
    assert fault.truth == {"stalled_steps": late}
    assert fault.end == ONSET + 20
    waits = per_step(run.block, signals.DATA_SECONDS)
    assert all(waits.pop(step) >= fault.strength for step in late)
    assert statistics.median(waits.values()) < fault.strength / 2
    assert first_difference(run.block, clean.block) is None


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
