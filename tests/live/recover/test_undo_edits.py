"""An undo does not take back what the user has done on purpose since the snapshot."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.undo import (
    KINDS,
    Edit,
    Loop,
    flip_bit,
    flip_weight,
    lose_weight,
    refusals,
    same,
    train,
    undos,
)
from tests.live.recover.test_undo import reset_head, reset_head_data
from torch import nn, optim

import trimtab
from trimtab.live.recover.undo_plan import MAX_WAIT

STEPS = 40


def project(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.mul_(0.999)


@pytest.mark.parametrize("edit", [reset_head, reset_head_data])
def test_an_undo_returns_to_a_snapshot_after_the_edit(edit: Any, tmp_path: Path) -> None:
    """Snapshots are 10 updates apart: the one of update 20 is from before the edit."""
    loop = train(KINDS["plain"], tmp_path, "recover", edits={22: edit, 29: flip_weight})
    (undo,) = undos(tmp_path)
    restored = loop.states[undo.step]
    assert any(same(restored, state) for state in loop.states[22:29])


def grow(loop: Loop) -> None:
    extra = nn.Parameter(torch.zeros(3))
    loop.optimizers[0].add_param_group({"params": [extra], "lr": 1e-3})


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (reset_head, "your code has written weights"),
        (reset_head_data, "your code has written weights"),
        (grow, "no snapshot"),
    ],
)
def test_an_edit_without_a_snapshot_since_is_not_lost(edit: Any, why: str, tmp_path: Path) -> None:
    loop = train(KINDS["plain"], tmp_path, "recover", edits={24: edit, 25: flip_weight})
    assert undos(tmp_path) == []
    (refusal,) = refusals(tmp_path)
    assert why in str(refusal.facts["because"])
    assert len(loop.losses) == STEPS


def lose_squares(loop: Loop) -> None:
    for state in loop.optimizers[0].state.values():
        state["exp_avg_sq"].numpy()[...] = 0


@pytest.mark.parametrize(
    "edits",
    [
        {25: lose_squares},  # past torch: it is no edit
        {24: reset_head, 25: lose_weight},  # the run would be lost otherwise
        # Its tensors are not compared, as torch counts them; what is not finite is undone.
        {**dict.fromkeys(range(STEPS), project), 25: lose_weight},
    ],
)
def test_no_edit_is_in_the_way_of_what_must_be_undone(
    edits: dict[int, Edit], tmp_path: Path
) -> None:
    loop = train(KINDS["plain"], tmp_path, "recover", edits=edits)
    assert len(undos(tmp_path)) == 1
    assert all(torch.isfinite(p).all() for p in loop.model.parameters())


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
                flip_bit(two.weight, 27)
            (first if number < 30 else second).step()
            both.zero_grad()
            sums.append(float(two.weight.detach().sum()))
    (undo,) = undos(tmp_path)
    assert undo.step <= 60 + 4 + MAX_WAIT  # it is waited for, and nothing harmed is trained
    assert int(undo.facts["updates_lost"]) <= 12
    assert len(set(sums[-20:])) == 20  # it trains again
