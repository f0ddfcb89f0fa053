"""Every contender sees the past alone, and says of a fork what it says of the whole series."""

from collections.abc import Callable

import numpy as np
import pytest
from benchmarks.detect.contenders import Contender
from benchmarks.detect.injections import SHAPES, fork_at
from benchmarks.detect.measure import first_onset
from benchmarks.detect.ours import our_contenders
from benchmarks.detect.peers import peer_contenders
from benchmarks.detect.peers.packages import hard_series
from benchmarks.detect.peers.trailing import trailing
from benchmarks.tests.runs import quiet_block

from trimtab.core.block import Block

pytestmark = pytest.mark.filterwarnings("ignore")  # packages of peers warn when they are imported

ROW = 1300


@pytest.fixture(scope="module")
def contenders() -> list[Contender]:
    return [*our_contenders(), *peer_contenders()]


def test_nobody_sees_the_future(contenders: list[Contender]) -> None:
    run = hard_series(1600)
    for contender in contenders:
        whole = contender.watch(run).run
        for rows in (90, 700, 1201, 1599):
            assert (contender.watch(run[:rows]).run == whole[:rows]).all(), contender.name


def test_a_fork_is_judged_like_the_whole_spliced_series(contenders: list[Contender]) -> None:
    run = quiet_block(2600)
    forks = [fork_at(run, ROW, shape) for shape in SHAPES[:5]]
    for contender in contenders:
        alarms = contender.watch(run, forks)
        assert (alarms.run == contender.watch(run).run).all()
        for fork, flags in zip(forks, alarms.forks, strict=True):
            spliced = contender.watch(Block.concat([run[:ROW], fork.tail])).run
            expected = first_onset(alarms.run, spliced[ROW:], fork)
            assert first_onset(alarms.run, flags, fork) == expected, (contender.name, fork.kind)


def test_forks_may_come_in_any_order(contenders: list[Contender]) -> None:
    run = quiet_block(2600)
    forks = [fork_at(run, row, SHAPES[0]) for row in (1300, 1100, 1200)]
    for contender in contenders:
        together = contender.watch(run, forks).forks
        for fork, flags in zip(forks, together, strict=True):
            assert (contender.watch(run, [fork]).forks[0] == flags).all(), contender.name


@pytest.mark.parametrize(
    ("name", "find"),
    [
        ("textbook, loss or norm", lambda rows: rows[0] == 0),
        ("Megatron-LM 10x", lambda rows: rows[0] == 2),
        ("ByteRobust 5x", lambda rows: rows[0] == 1),
        ("llm-foundry KillLossSpike", lambda rows: len(rows) == 0),
        ("Lightning SpikeDetection", lambda rows: len(rows) == 0),
        ("ZClip trigger", lambda rows: rows[0] == 0),
        ("OLMo-core SkipStep 6 sigma / 128", lambda rows: rows[0] == 0),
    ],
)
def test_rules_see_the_published_spike_where_their_facts_say(
    contenders: list[Contender], name: str, find: Callable[[list[int]], bool]
) -> None:
    # Norms of 3.9, 9.9, 66 and 600 times the usual, then a loss at 2.4 times the usual.
    run = quiet_block(1400)
    (contender,) = (item for item in contenders if item.name == name)
    flags = contender.watch(run, [fork_at(run, ROW, SHAPES[0])]).forks[0]
    assert find(np.flatnonzero(flags).tolist())


def test_one_nan_makes_skip_step_skip_as_long_as_its_window(contenders: list[Contender]) -> None:
    (contender,) = (item for item in contenders if item.name.startswith("OLMo-core SkipStep"))
    run = quiet_block(600)
    run.columns["loss"].values[300] = np.nan
    assert contender.watch(run).run[300:429].all()
    assert not contender.watch(run).run[429]


def test_trailing_is_what_a_loop_would_say() -> None:
    values = np.random.default_rng(0).normal(size=300)
    mean, deviation = trailing(values, 50, least=20, ddof=1)
    for row in range(300):
        before = values[max(row - 50, 0) : row]
        if len(before) < 20:
            assert np.isnan(mean[row])
        else:
            assert mean[row] == pytest.approx(before.mean())
            assert deviation[row] == pytest.approx(before.std(ddof=1))
