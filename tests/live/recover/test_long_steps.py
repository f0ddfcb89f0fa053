"""Where steps are long, all of the state is watched and an undo loses next to nothing."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import RUNS_ALL
from tests.kit.undo import undos
from torch import nn, optim

import trimtab
from trimtab.live.measure.time_budget import StepClock
from trimtab.live.recover.memory_watch import MIN_ELEMENTS, state_tensors

FLIPS, FIRST, APART = 3 if RUNS_ALL else 2, 60, 350


@pytest.fixture(autouse=True)
def _long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the guard believe that a step takes 100 s."""
    seconds = property(lambda self: 100.0, lambda self, value: None)
    monkeypatch.setattr(StepClock, "seconds", seconds, raising=False)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_high_bits_are_undone_with_at_most_two_updates_lost(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 700), nn.Linear(700, 8))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    at = {FIRST + APART * number + chance.randrange(9) for number in range(FLIPS)}
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="recover") as guard:
        for number in range(max(at) + 10):
            x = torch.randn(8, 64)
            loss = (model(x) - x[:, :8]).square().mean()
            guard.record(loss=loss)
            loss.backward()
            if number in at:
                flip(optimizer, chance)
            optimizer.step()
            optimizer.zero_grad()
    found = undos(tmp_path)
    assert len(found) == FLIPS
    for undo, planted in zip(found, sorted(at), strict=True):
        assert "flipped in memory" in str(undo.facts["why"])
        assert undo.step - planted <= 3
        assert int(undo.facts["updates_lost"]) <= 2


def flip(optimizer: optim.Optimizer, chance: random.Random) -> None:
    """Flip one of the high bits of an element of a weight or a moment."""
    parts = [p.tensor for p in state_tensors(optimizer) if p.tensor.numel() >= MIN_ELEMENTS]
    tensor: Any = chance.choice(parts)
    numbers = tensor.detach().numpy().reshape(-1).view(np.uint32)
    numbers[chance.randrange(len(numbers))] ^= np.uint32(1 << chance.randrange(24, 31))


def test_a_snapshot_after_each_update_leaves_one_from_before_the_harm(tmp_path: Path) -> None:
    """News of a step that is not finite comes two updates later, with three more snapshots."""
    torch.manual_seed(0)
    model = nn.Linear(64, 8)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="recover") as guard:
        for number in range(80):
            if number == FIRST:
                model.weight.data[3, 3] = torch.nan
            x = torch.randn(8, 64)
            loss = (model(x) - x[:, :8]).square().mean()
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    (undo,) = undos(tmp_path)
    assert undo.step - FIRST <= 3
    assert int(undo.facts["updates_lost"]) <= 2
    assert torch.isfinite(model.weight).all()
