"""Checkpoints over ranks: any number of ranks and any layout reads what a different one wrote."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from tests.kit.runs import FEATURES, batches, seed_all
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.state.checkpoints.run_checkpoints import Checkpoints
from trimtab.state.training_state import TrainingState


def build(layout: str, seed: int) -> TrainingState:
    seed_all(seed)
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))
    if layout == "ddp":
        model = DistributedDataParallel(model)
    elif layout == "fsdp2":
        fully_shard(model)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    scheduler = optim.lr_scheduler.StepLR(optimizer, 3)
    return TrainingState(model, [optimizer], schedulers=[scheduler])


def train(state: TrainingState, first: int, last: int) -> None:
    """The same global batch whatever the number of ranks."""
    data = batches(100, size=8)
    world = dist.get_world_size()
    for step in range(first, last):
        inputs, targets = (part.chunk(world)[dist.get_rank()] for part in data[step])
        nn.functional.mse_loss(state.model(inputs), targets).backward()
        state.optimizers[0].step()
        scheduler: Any = state.schedulers[0]
        scheduler.step()
        state.optimizers[0].zero_grad()


def checkpoints_in(folder: Path, state: TrainingState) -> Checkpoints:
    return Checkpoints(
        state.model, state.optimizers, run_dir=folder, scheduler=state.schedulers, background=True
    )


def whole(state: TrainingState) -> list[Any]:
    values = list(state.model.parameters())
    values += [t for s in state.optimizers[0].state.values() for t in s.values()]
    full = [t.full_tensor() if isinstance(t, DTensor) else t for t in values]
    return [t.detach().numpy().copy() for t in full]


def leg(layout: str, first: int, last: int, folder: Path, rank: int) -> Any:
    """Go on from the checkpoint if there is one, train, and save the next."""
    state = build(layout, seed=first)  # a later leg begins with other weights
    checkpoints = checkpoints_in(folder, state)
    assert checkpoints.resume().step == first
    if first:
        assert state.optimizers[0].param_groups[0]["lr"] == pytest.approx(
            1e-2 * 0.1 ** (first // 3)
        )
    train(state, first, last)
    checkpoints.save(last)
    checkpoints.wait()
    return whole(state)


@pytest.mark.parametrize(
    "legs",
    [
        [("ddp", 2), ("fsdp2", 2), ("ddp", 4)],
        pytest.param([("fsdp2", 2), ("fsdp2", 4), ("fsdp2", 2)], marks=pytest.mark.slow),
    ],
    ids=["ddp-fsdp2-ddp", "2-4-2 ranks"],
)
def test_a_run_goes_on_over_other_ranks_and_layouts(
    tmp_path: Path, legs: list[tuple[str, int]]
) -> None:
    straight = run_ranks(partial(leg, "ddp", 0, 9, tmp_path / "straight"), 2)[0]
    results: list[Any] = []
    for number, (layout, world) in enumerate(legs):
        body = partial(leg, layout, 3 * number, 3 * number + 3, tmp_path / "legs")
        results = run_ranks(body, world)
    for result in results:
        for mine, theirs in zip(result, straight, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
