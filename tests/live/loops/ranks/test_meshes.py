"""Norms and decisions on meshes of every kind: the numbers of one process, or a clear refusal."""

from pathlib import Path

import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.launch import run_ranks
from tests.kit.tiny import batches, loss_of
from tests.kit.user_loop import NAN, column, discarded_steps, watching
from tests.live.loops.ranks.one_process import norms_of_one_process
from tests.live.loops.setups import parallel

from trimtab.state.host_copy import local

STEPS = 10
BAD = 6

MESHES = {
    "tensor_parallel": (parallel.tensor_parallel, 2),
    "replicated_tensor_parallel": (parallel.replicated_tensor_parallel, 4),
    "sharded_tensor_parallel": (parallel.fsdp2_over_tensor_parallel, 4),
    "hybrid_sharded": (parallel.hsdp, 4),
}


def train_on_mesh(
    rank: int, kind: str, folder: Path, mode: str, faults: dict[int, int], steps: int = STEPS
) -> bool:
    """The same batches on every rank; at the step of a fault that rank's gradient has a NaN."""
    model = MESHES[kind][0]()
    with watching(folder, mode, model=model, make=parallel.plain_adamw) as run:
        for step, batch in enumerate(batches(steps)):
            loss = loss_of(model, batch)
            run.guard.record(loss=loss, tokens=batch.numel())
            run.optimizer.zero_grad()
            loss.backward()
            if faults.get(step) == rank:
                local(model.blocks[0].mlp[0].weight.grad).fill_(NAN)
            run.optimizer.step()
    return all(bool(torch.isfinite(local(p.detach())).all()) for p in model.parameters())


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
