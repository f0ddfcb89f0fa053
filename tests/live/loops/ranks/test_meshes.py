"""Norms and decisions on meshes of every kind: the numbers of one process, or a clear refusal."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import some_of
from tests.kit.launch import run_ranks
from tests.kit.tiny import batches, journal_of, loss_of
from tests.kit.user_loop import NAN, column, discarded_steps
from tests.live.loops.ranks.one_process import norms_of_one_process, plain_model
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import trimtab

STEPS = 10
BAD = 6


def shard_mlps(model: Any, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        plan = {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
        parallelize_module(block, mesh, plan)


def tensor_parallel() -> Any:
    model = plain_model()
    shard_mlps(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def replicated_tensor_parallel() -> Any:
    """Pairs of ranks hold the shards, and each pair holds the whole model."""
    model = plain_model()
    shard_mlps(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"])
    return model


def sharded_tensor_parallel() -> Any:
    """FSDP2 over tensor parallel, as torchtitan does."""
    model = plain_model()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    shard_mlps(model, mesh["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model


def hybrid_sharded() -> Any:
    model = plain_model()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


MESHES = {
    "tensor_parallel": (tensor_parallel, 2),
    "replicated_tensor_parallel": (replicated_tensor_parallel, 4),
    "sharded_tensor_parallel": (sharded_tensor_parallel, 4),
    "hybrid_sharded": (hybrid_sharded, 4),
}


def train_on_mesh(
    rank: int, kind: str, folder: Path, mode: str, faults: dict[int, int], steps: int = STEPS
) -> bool:
    """The same batches on every rank; at the step of a fault that rank's gradient has a NaN."""
    model = MESHES[kind][0]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    with trimtab.watch(model, optimizer, run_dir=folder, mode=mode) as guard:
        for step, batch in enumerate(batches(steps)):
            loss = loss_of(model, batch)
            guard.record(loss=loss, tokens=batch.numel())
            optimizer.zero_grad()
            loss.backward()
            if faults.get(step) == rank:
                local(model.blocks[0].mlp[0].weight.grad).fill_(NAN)
            optimizer.step()
    return all(bool(torch.isfinite(local(p)).all()) for p in model.parameters())


def local(tensor: Any) -> torch.Tensor:
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


@pytest.mark.parametrize("kind", some_of(MESHES, "tensor_parallel"))
def test_the_norm_on_a_mesh_is_that_of_one_process(kind: str, tmp_path: Path) -> None:
    run_ranks(train_on_mesh, MESHES[kind][1], kind, tmp_path, "observe", {})
    expected = norms_of_one_process(batches(STEPS))
    assert column(tmp_path, "grad_norm") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", some_of(MESHES, "sharded_tensor_parallel"))
def test_a_nan_in_one_shard_is_kept_out_on_every_rank(kind: str, tmp_path: Path) -> None:
    world = MESHES[kind][1]
    faults = {BAD: world - 1}
    assert all(run_ranks(train_on_mesh, world, kind, tmp_path, "protect", faults))
    assert discarded_steps(tmp_path) == [BAD]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MESHES)
def test_faults_on_random_ranks_are_kept_out_for_300_steps(kind: str, tmp_path: Path) -> None:
    choice = random.Random(kind)
    world = MESHES[kind][1]
    faults = {step: choice.randrange(world) for step in sorted(choice.sample(range(300), 30))}
    arguments = (kind, tmp_path, "protect", faults, 300)
    assert all(run_ranks(train_on_mesh, world, *arguments, deadline=240.0))
    assert set(discarded_steps(tmp_path)) >= set(faults)
    assert len(journal_of(tmp_path)) == 300
