"""The trainer on real ranks: reproducible bits, and the same run for any number of them."""

from pathlib import Path
from typing import Any

import pytest
from tests.lab.training import checkpoint, journal, per_step, run_until, small, timeless

from trimtab.core.errors import ConfigError
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

CLOSE = 1e-5
"""Relative: sums over a different number of ranks are rounded differently; nothing else differs."""


def _train(rank: int, settings: dict[str, Any], run_dir: Path, cache: Path, stop: int) -> None:
    config = small(**settings)
    run_until(stop, config, run_dir, cache, resume=True)


@pytest.mark.slow  # in CI the faults of ranks train with DDP
def test_the_same_seed_gives_the_same_journal_on_two_ranks(tmp_path: Path, cache: Path) -> None:
    settings = {"accumulate": 2, "measure": True, "steps": 6}
    for name in ("one", "two"):
        run_ranks(_train, 2, settings, tmp_path / name, cache, 6)
    one, two = (timeless(journal(tmp_path / name)) for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert {name for name in one if one[name] != two[name]} == set()


@pytest.mark.slow
def test_a_run_may_change_its_ranks(tmp_path: Path, cache: Path) -> None:
    settings: dict[str, Any] = {"dtype": Dtype.FP32, "accumulate": 2, "steps": 20}
    train(small(**settings), tmp_path / "alone", cache_dir=cache)
    for stop, world in ((4, 2), (8, 4), (20, 2)):
        run_ranks(_train, world, settings, tmp_path / "ranks", cache, stop)
    for signal in ("loss", "grad_norm", "lr", "eval_loss"):
        mine, other = (per_step(journal(tmp_path / name), signal) for name in ("ranks", "alone"))
        assert mine.keys() == other.keys(), signal
        worst = max(abs(mine[step] / other[step] - 1) for step in mine)
        assert worst < CLOSE, (signal, worst)
    mine_state, other_state = (checkpoint(tmp_path / n, 20)["model"] for n in ("ranks", "alone"))
    for key, expected in other_state.items():
        assert (mine_state[key] - expected).norm() < 1e-3 * expected.norm(), key


def _refuse(rank: int, settings: dict[str, Any], run_dir: Path, cache: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        train(small(**settings), run_dir, cache_dir=cache)
    return str(caught.value)


def test_impossible_settings_are_refused_on_all_ranks(tmp_path: Path, cache: Path) -> None:
    errors = run_ranks(_refuse, 2, {"batch_size": 3}, tmp_path, cache)
    assert all("must be divisible by 2 ranks" in error for error in errors)
