"""Where steps are long, all of the state is watched and an undo loses next to nothing."""

import random
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.kit.cases import RUNS_ALL
from tests.kit.undo import flip_bit, undos
from tests.kit.user_loop import take_step, watching
from torch import nn, optim

from trimtab.live.measure.time_budget import StepClock
from trimtab.live.recover.memory_watch import MIN_ELEMENTS, state_tensors

FLIPS, FIRST, APART = 3 if RUNS_ALL else 2, 60, 350
adamw = partial(optim.AdamW, lr=1e-3)


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
    at = {FIRST + APART * number + chance.randrange(9) for number in range(FLIPS)}
    with watching(tmp_path, "recover", model=model, make=adamw) as run:
        for number in range(max(at) + 10):
            x = torch.randn(8, 64)
            loss = (model(x) - x[:, :8]).square().mean()
            if number in at:
                flip(run.optimizer, chance)
            take_step(run.guard, run.optimizer, loss)
    found = undos(tmp_path)
    assert len(found) == FLIPS
    for undo, planted in zip(found, sorted(at), strict=True):
        assert "flipped in memory" in str(undo.facts["why"])
        assert undo.step - planted <= 3
        assert int(undo.facts["updates_lost"]) <= 2


def flip(optimizer: optim.Optimizer, chance: random.Random) -> None:
    """Flip one of the high bits of an element of a weight or a moment."""
    parts = [p.tensor for p in state_tensors(optimizer) if p.tensor.numel() >= MIN_ELEMENTS]
    tensor = chance.choice(parts)
    element = chance.randrange(tensor.numel())
    flip_bit(tensor, chance.randrange(24, 31), element)


def test_a_snapshot_after_each_update_leaves_one_from_before_the_harm(tmp_path: Path) -> None:
    """News of a step that is not finite comes two updates later, with three more snapshots."""
    torch.manual_seed(0)
    model = nn.Linear(64, 8)
    with watching(tmp_path, "recover", model=model, make=adamw) as run:
        for number in range(80):
            if number == FIRST:
                model.weight.data[3, 3] = torch.nan
            x = torch.randn(8, 64)
            take_step(run.guard, run.optimizer, (model(x) - x[:, :8]).square().mean())
    (undo,) = undos(tmp_path)
    assert undo.step - FIRST <= 3
    assert int(undo.facts["updates_lost"]) <= 2
    assert torch.isfinite(model.weight).all()
