"""An undo does not take back what the user has done on purpose since the snapshot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.undo import KINDS, Edit, Loop, flip_weight, lose_weight, refusals, same, train, undos
from torch import nn, optim

import trimtab
from trimtab.live.recover.undo_plan import MAX_WAIT

STEPS = 40


def reset_head(loop: Any) -> None:
    nn.init.normal_(loop.model.head.weight)


def reset_head_by_data(loop: Any) -> None:
    loop.model.head.weight.data.normal_()


def project(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.mul_(0.999)


@pytest.mark.parametrize("edit", [reset_head, reset_head_by_data])
def test_an_undo_returns_to_a_snapshot_after_the_edit(edit: Any, tmp_path: Path) -> None:
    """Snapshots are 10 updates apart: the one of update 20 is from before the edit."""
    loop = train(KINDS["plain"], tmp_path, "recover", edits={22: edit, 29: flip_weight})
    (undo,) = undos(tmp_path)
    restored = loop.states[undo.step]
    assert any(same(restored, state) for state in loop.states[22:29])


@pytest.mark.parametrize("edit", [reset_head, reset_head_by_data])
def test_an_edit_without_a_snapshot_since_is_not_lost(edit: Any, tmp_path: Path) -> None:
    train(KINDS["plain"], tmp_path, "recover", edits={24: edit, 25: flip_weight})
    assert undos(tmp_path) == []
    (refusal,) = refusals(tmp_path)
    assert "your code has written weights" in str(refusal.facts["because"])


def lose_squares(loop: Loop) -> None:
    for state in loop.optimizers[0].state.values():
        state["exp_avg_sq"].numpy()[...] = 0


def test_moments_that_are_lost_past_torch_are_no_edit(tmp_path: Path) -> None:
    train(KINDS["plain"], tmp_path, "recover", edits={25: lose_squares})
    (undo,) = undos(tmp_path)
    assert "beyond what any gradients" in str(undo.facts["why"])


def test_a_weight_that_is_not_finite_is_undone_all_the_same(tmp_path: Path) -> None:
    """The run would be lost otherwise."""
    loop = train(KINDS["plain"], tmp_path, "recover", edits={24: reset_head, 25: lose_weight})
    assert len(undos(tmp_path)) == 1
    assert all(torch.isfinite(p).all() for p in loop.model.parameters())


def test_an_edit_of_each_step_is_no_obstacle(tmp_path: Path) -> None:
    """Its tensors are not compared, as torch counts them; what is not finite is undone."""
    edits: dict[int, Edit] = {**dict.fromkeys(range(STEPS), project), 25: lose_weight}
    train(KINDS["plain"], tmp_path, "recover", edits=edits)
    assert len(undos(tmp_path)) == 1


def test_a_layer_that_was_added_since_is_no_error(tmp_path: Path) -> None:
    extra = nn.Parameter(torch.zeros(3))

    def grow(loop: Loop) -> None:
        loop.optimizers[0].add_param_group({"params": [extra], "lr": 1e-3})

    loop = train(KINDS["plain"], tmp_path, "recover", edits={24: grow, 25: flip_weight})
    assert undos(tmp_path) == []
    (refusal,) = refusals(tmp_path)
    assert "no snapshot" in str(refusal.facts["because"])
    assert len(loop.losses) == STEPS


def test_an_optimizer_that_has_ended_does_not_hold_up_the_other(tmp_path: Path) -> None:
    """First one model is trained, then the other; both were given to `watch`."""
    torch.manual_seed(0)
    one, two = nn.Linear(8, 16), nn.Linear(16, 4)
    first = optim.AdamW(one.parameters(), lr=1e-2)
    second = optim.AdamW(two.parameters(), lr=1e-2)
    sums = []
    both = nn.Sequential(one, two)
    with trimtab.watch(both, [first, second], run_dir=tmp_path, mode="recover") as guard:
        for number in range(140):
            loss = both(torch.randn(8, 8)).square().mean()
            loss.backward()
            guard.record(loss=loss)
            if number == 60:
                two.weight.detach().numpy().reshape(-1).view(np.uint32)[3] ^= np.uint32(1 << 27)
            (first if number < 30 else second).step()
            both.zero_grad()
            sums.append(float(two.weight.detach().sum()))
    (undo,) = undos(tmp_path)
    assert undo.step <= 60 + 4 + MAX_WAIT  # it is waited for, and nothing harmed is trained
    assert int(undo.facts["updates_lost"]) <= 12
    assert len(set(sums[-20:])) == 20  # it trains again
