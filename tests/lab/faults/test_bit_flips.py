"""F13: which bit of which number flips, on which rank, and that no other bit does."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

import torch
from tests.kit.cases import some_of
from tests.lab.observing import ONSET, STEPS, STILL, Arrays, Bench, Observed, differing

from trimtab.lab.faults.machine_faults import GradientBitFlip, WeightBitFlip
from trimtab.lab.trainer.intervention import Base

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

BITS = [(0.0, 23), (0.6, 28), (1.0, 30)]
"""Severity to bit."""


def _flipped_bits(one: Arrays, other: Arrays) -> list[tuple[str, int, int]]:
    """Which bits differ: tensor, element, bit."""
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


def test_seeds_choose_other_tensors_and_elements(bench: Bench) -> None:
    chosen = set()
    for seed in range(4):
        loop = bench.broken(GradientBitFlip(onset=0, severity=1.0, seed=seed), steps=1).loop
        chosen.add(_flip_in_truth(loop))
    assert len(chosen) == 4
    assert len({tensor for tensor, _, _ in chosen}) > 2


class _GradientOnRanks(GradientBitFlip):
    base = Base.RANKS


class _WeightOnRanks(WeightBitFlip):
    base = Base.RANKS


@pytest.mark.slow
def test_only_the_last_rank_is_hit(bench: Bench) -> None:
    run, clean = bench.pair(_GradientOnRanks(onset=ONSET, severity=1.0, seed=0), optimizer=STILL)
    for step in range(STEPS):
        first, last = (
            _flipped_bits(run.ranks[rank].gradients[step], clean.ranks[rank].gradients[step])
            for rank in (0, 1)
        )
        assert first == []
        assert last == ([_flip_in_truth(run.ranks[1])] if step == ONSET else [])
    assert run.ranks[0].truth == {}
    assert run.ranks[1].truth["rank"] == 1


@pytest.mark.slow
def test_a_weight_flips_on_the_last_rank_only(bench: Bench) -> None:
    run, clean = bench.pair(_WeightOnRanks(onset=ONSET, severity=1.0, seed=0), optimizer=STILL)
    assert not differing(run.ranks[0].weights[ONSET], clean.ranks[0].weights[ONSET])
    found = _flipped_bits(run.ranks[1].weights[ONSET], clean.ranks[1].weights[ONSET])
    assert found == [_flip_in_truth(run.ranks[1])]
