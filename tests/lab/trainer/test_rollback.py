"""The lab's trainer counts steps by the guard: a run that goes back ends where it should."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

import torch
from tests.lab.training import TRAINED, journal, small, weights

import trimtab
from trimtab.core.config import Mode
from trimtab.lab.trainer.train import train

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_a_run_that_goes_back_makes_all_its_steps(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(steps=40)
    train(config, tmp_path / "straight", cache_dir=cache, mode=Mode.RECOVER)
    guards: list[Any] = []
    watch = trimtab.watch

    def keep(*arguments: Any, **options: Any) -> Any:
        guards.append(watch(*arguments, **options))
        return guards[-1]

    monkeypatch.setattr(trimtab, "watch", keep)

    def go_back(done: int, loss: Any) -> None:
        if done == 30 and guards[0].recovery.attempt == 0:
            guards[0].rollback(to=15)

    train(config, tmp_path / "returned", cache_dir=cache, mode=Mode.RECOVER, on_step=go_back)
    one, other = (weights(tmp_path / name, 40) for name in ("straight", "returned"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    straight, returned = journal(tmp_path / "straight"), journal(tmp_path / "returned")
    assert returned.step.tolist() == [*range(30), *range(10, 40)]
    for signal in (*TRAINED, "fingerprint"):
        again = returned.column(signal).values[30:]
        assert again.tolist() == straight.column(signal).values[10:].tolist(), signal
