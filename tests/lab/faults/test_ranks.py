"""Faults on one rank: the last rank has the fault, and no other."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, STEPS, STILL, Bench, differing
from tests.lab.training import per_step

from trimtab.core import signals
from trimtab.lab.faults.machine_faults import BadDevice, OutOfSync, SlowRank

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


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


def test_f17_ends_where_it_says() -> None:
    fault = SlowRank(onset=ONSET, severity=0.5, seed=0)
    assert fault.end == ONSET + 60
