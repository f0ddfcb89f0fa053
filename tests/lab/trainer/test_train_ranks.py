"""The trainer on real ranks: reproducible bits, and the same run under every engine."""

from pathlib import Path
from typing import Any

import pytest
from tests.lab.training import journal, per_step, run_until, small, timeless, weights

from trimtab.core.errors import ConfigError
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype, Engine

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

CLOSE = 1e-5
"""Relative: sums over a different number of ranks are rounded differently; nothing else differs."""


def _train(rank: int, settings: dict[str, Any], run_dir: Path, cache: Path, stop: int) -> None:
    config = small(**settings)
    run_until(stop, config, run_dir, cache, resume=True)


@pytest.mark.slow  # in CI shards train like one process (test_model.py), and DDP has its faults
@pytest.mark.parametrize("engine", [Engine.DDP, Engine.FSDP2])
def test_the_same_seed_gives_the_same_journal_on_two_ranks(
    engine: Engine, tmp_path: Path, cache: Path
) -> None:
    settings = {"engine": engine, "accumulate": 2, "measure": True, "steps": 6}
    for name in ("one", "two"):
        run_ranks(_train, 2, settings, tmp_path / name, cache, 6)
    one, two = (timeless(journal(tmp_path / name)) for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert {name for name in one if one[name] != two[name]} == set()


@pytest.mark.slow
def test_a_run_may_change_its_ranks_and_its_engine(tmp_path: Path, cache: Path) -> None:
    settings: dict[str, Any] = {"dtype": Dtype.FP32, "accumulate": 2, "steps": 20}
    train(small(**settings), tmp_path / "alone", cache_dir=cache)
    ways = {
        "ranks": [(2, Engine.DDP), (4, Engine.DDP), (2, Engine.DDP)],
        "sharded ranks": [(2, Engine.FSDP2), (4, Engine.FSDP2), (2, Engine.FSDP2)],
        "engines": [(2, Engine.FSDP2), (2, Engine.DDP), (4, Engine.HSDP), (2, Engine.FSDP2)],
    }
    for name, legs in ways.items():
        for leg, (world, engine) in enumerate(legs, start=1):
            stop = 20 if leg == len(legs) else 4 * leg
            run_ranks(_train, world, settings | {"engine": engine}, tmp_path / name, cache, stop)
        _assert_close(tmp_path / name, tmp_path / "alone", name)


def _assert_close(found: Path, expected: Path, name: str) -> None:
    for signal in ("loss", "grad_norm", "lr", "eval_loss"):
        mine, other = per_step(journal(found), signal), per_step(journal(expected), signal)
        assert mine.keys() == other.keys(), (name, signal)
        worst = max(abs(mine[step] / other[step] - 1) for step in mine)
        assert worst < CLOSE, (name, signal, worst)
    mine_state, other_state = weights(found, 20), weights(expected, 20)
    for key in mine_state.keys() & other_state.keys():
        if key.startswith("model."):
            norm = other_state[key].norm()
            assert (mine_state[key] - other_state[key]).norm() < 1e-3 * norm, (name, key)


def _refuse(rank: int, settings: dict[str, Any], run_dir: Path, cache: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        train(small(**settings), run_dir, cache_dir=cache)
    return str(caught.value)


def test_impossible_settings_are_refused_on_all_ranks(tmp_path: Path, cache: Path) -> None:
    errors = run_ranks(_refuse, 2, {}, tmp_path, cache)
    assert all("alone cannot use 2 ranks" in error for error in errors)
    errors = run_ranks(_refuse, 3, {"engine": Engine.HSDP, "batch_size": 6}, tmp_path, cache)
    assert all("groups of equal size, got 3" in error for error in errors)
    errors = run_ranks(_refuse, 2, {"engine": Engine.DDP, "batch_size": 3}, tmp_path, cache)
    assert all("must be divisible by 2 ranks" in error for error in errors)
