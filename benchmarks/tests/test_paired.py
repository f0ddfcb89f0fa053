"""Pairs of runs: the shift that is put in is the one that is found."""

import numpy as np
import pytest
from benchmarks.detect import paired
from tests.kit.public_runs import RealRun
from tests.kit.synthetic import block_of, falling_loss


def run(name: str, seed: int) -> RealRun:
    own = np.random.default_rng(seed).normal(0, 0.004, 3000)
    block = block_of({"loss": falling_loss(3000, noise=0.1) + own})
    return RealRun(name=name, split="tune", label="healthy", tags=(), labels=(), block=block)


def test_a_small_shift_is_found_in_each_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "PAIRS", {"tune": ("a", "b")})
    monkeypatch.setattr(paired, "POINTS", 5)
    results = paired.measure_pairs([run("a", 1), run("b", 2)], "tune")
    assert [(result.run, result.reference) for result in results] == [("a", "b"), ("b", "a")]
    for result in results:
        assert result.num_false == 0
        assert all(delay is not None and 0 <= delay <= 10 for delay in result.delays)
    assert "5 of 5" in paired.pair_table(results)


def test_without_the_shift_there_is_nothing_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "PAIRS", {"tune": ("a", "b")})
    monkeypatch.setattr(paired, "POINTS", 5)
    monkeypatch.setattr(paired, "SHIFT", 0.0)
    for result in paired.measure_pairs([run("a", 1), run("b", 2)], "tune"):
        assert result.delays == [None] * 5
