"""Snapshots on several ranks: all return to the same bits."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import one_of_each
from tests.kit.runs import FEATURES, batches, seed_all
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.state.snapshot import Snapshot
from trimtab.state.training_state import TrainingState


def build(layout: str) -> nn.Module:
    seed_all()
    model: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)
    )
    if layout == "ddp":
        return DistributedDataParallel(model)
    if layout == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard")))
    else:
        fully_shard(model)
    return model


def train(model: nn.Module, optimizer: optim.Optimizer, first: int, last: int) -> list[float]:
    data = batches(200)
    losses = []
    for step in range(first, last):
        inputs, targets = data[step * dist.get_world_size() + dist.get_rank()]
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def straight_and_back(layout: str, fused: bool, rank: int) -> Any:
    model = build(layout)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    state = TrainingState(model, [optimizer])
    snapshots = {0: Snapshot(state)}
    losses = train(model, optimizer, 0, 10)
    snapshots[10] = Snapshot(state)
    losses += train(model, optimizer, 10, 20)
    expected = local_values(model, optimizer)
    for step in (10, 0):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        optimizer.state.clear()
        snapshots[step].restore()
        snapshots[step].restore_random_state()
        again = train(model, optimizer, step, 20)
        assert again == losses[step:]
        for mine, theirs in zip(local_values(model, optimizer), expected, strict=True):
            assert torch.equal(mine, theirs)
    whole = sum(part.nbytes for part in expected)
    return snapshots[10].num_bytes / whole


def local_values(model: nn.Module, optimizer: optim.Optimizer) -> list[torch.Tensor]:
    values = [*model.parameters()]
    values += [t for p in model.parameters() for t in optimizer.state[p].values()]
    locals_ = [t.to_local() if hasattr(t, "to_local") else t for t in values]
    return [t.detach().clone() for t in locals_]


@pytest.mark.parametrize(
    ("layout", "fused"), one_of_each(product(["ddp", "fsdp2", "hsdp"], [False, True]))
)
def test_ranks_return_exactly(layout: str, fused: bool) -> None:
    world = 4 if layout == "hsdp" else 2
    shares = run_ranks(partial(straight_and_back, layout, fused), world)
    assert all(share == pytest.approx(1.0, abs=0.01) for share in shares)
