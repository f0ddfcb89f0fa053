"""Every contender sees the past alone; what is said of a fork is what is said of the series."""

import numpy as np
import pytest
from benchmarks.detect.injections import SHAPES, fork_at
from benchmarks.detect.intervals import poisson_interval
from benchmarks.detect.measure import Contender, first_onset
from benchmarks.detect.ours import our_contenders
from benchmarks.detect.peers import PEERS
from tests.kit.synthetic import block_of, falling_loss

from trimtab.core.block import Block

NORMS = np.random.default_rng(1).normal(0.5, 0.05, 2600)
ROW = 1300


def run_of(rows: int) -> Block:
    """A healthy run, every step logged."""
    return block_of({"loss": falling_loss(rows), "grad_norm": NORMS[:rows].copy()})


def test_nobody_sees_the_future() -> None:
    draw, run = np.random.default_rng(2), run_of(1600)
    for name in ("loss", "grad_norm"):
        run.columns[name].values[draw.choice(1600, 50, replace=False)] *= draw.uniform(1.1, 8, 50)
        run.columns[name].values[1200] = np.nan
    everyone: list[Contender] = [*our_contenders(), *PEERS]
    for contender in everyone:
        whole = contender.watch(run)
        for rows in (90, 700, 1201, 1599):
            assert (contender.watch(run[:rows]) == whole[:rows]).all(), contender.name


def test_a_fork_is_judged_like_the_whole_spliced_series() -> None:
    run, ours = run_of(2600), our_contenders()[0]
    forks = [fork_at(run, ROW, shape) for shape in SHAPES[:5]]
    clean, tails = ours.watch_forks(run, forks)
    assert (clean == ours.watch(run)).all()
    for fork, (alarmed, _) in zip(forks, tails, strict=True):
        spliced = ours.watch(Block.concat([run[:ROW], fork.tail]))
        expected = first_onset(clean, spliced[ROW:], fork)
        assert first_onset(clean, alarmed, fork) == expected, fork.kind


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("textbook, loss or norm", 0),
        ("Megatron-LM 10x", 2),
        ("ByteRobust 5x", 1),
        ("llm-foundry KillLossSpike", None),
        ("Lightning SpikeDetection", None),
        ("ZClip trigger", 0),
        ("OLMo-core SkipStep 6 sigma / 128", 0),
    ],
)
def test_rules_see_the_published_spike_where_their_facts_say(name: str, first: int | None) -> None:
    # Norms of 3.9, 9.9, 66 and 600 times the usual, then a loss at 2.4 times the usual.
    run = run_of(1400)
    (rule,) = (item for item in PEERS if item.name == name)
    spliced = Block.concat([run[:ROW], fork_at(run, ROW, SHAPES[0]).tail])
    alarms = np.flatnonzero(rule.watch(spliced)[ROW:]).tolist()
    assert next(iter(alarms), None) == first


def test_poisson_intervals_are_the_tabled_ones() -> None:
    for count, low, high in ((0, 0.0, 3.689), (5, 1.623, 11.668), (100, 81.36, 121.63)):
        assert poisson_interval(count) == pytest.approx((low, high), abs=0.005)
