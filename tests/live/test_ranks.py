"""Under DDP and FSDP2 on two real ranks: same bits, one journal, numbers over all ranks."""

import socket
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import RUNS_ALL, some_of
from tests.kit.tiny import (
    Setup,
    adamw,
    assert_same_bits,
    batches,
    journal_of,
    make_model,
    train,
)
from tests.kit.user_loop import events_of, watching
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.signals import CLOCKS, NO_CURVES
from trimtab.lab.trainer.local_ranks import run_ranks

STEPS = 60 if RUNS_ALL else 12


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp2(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def hsdp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


ENGINES = {"ddp": ddp, "fsdp2": fsdp2, "hsdp": hsdp}


def compare(rank: int, engine: str, folder: Path) -> tuple[list[float], list[float]]:
    setup = Setup(adamw(fused=True), wrap=ENGINES[engine], steps=STEPS)
    data = batches(STEPS, seed=10 + rank)
    bare = train(setup, None, data=data)
    # FSDP2 gives the full norm to everybody; so does DDP.
    assert_same_bits(bare, train(setup, folder / "user", data=data))
    setup.guard_clips = True
    assert_same_bits(bare, train(setup, folder / "guard", data=data))
    setup.guard_clips, setup.clip, setup.steps = False, None, 2
    train(setup, folder / "unclipped", data=data)
    return bare.norms, bare.losses


@pytest.mark.parametrize(
    ("engine", "world"),
    some_of([("ddp", 2), ("fsdp2", 2), ("hsdp", 4)], ("ddp", 2), ("fsdp2", 2)),
)
def test_bits_norms_and_losses_over_ranks(engine: str, world: int, tmp_path: Path) -> None:
    results = run_ranks(compare, world, engine, tmp_path)
    norms = [np.array(norms) for norms, _ in results]
    losses = np.mean([losses for _, losses in results], axis=0)
    for other in norms[1:]:
        np.testing.assert_allclose(norms[0], other, rtol=1e-6)

    given = journal_of(tmp_path / "guard")
    assert len(given) == STEPS
    np.testing.assert_allclose(given.column("grad_norm").values, norms[0], rtol=1e-5)
    np.testing.assert_allclose(given.column("loss").values, losses, rtol=1e-5)
    assert given.column("tokens").values[0] == world * 36

    # The norm that we take ourselves must be the same as torch's, sharded or not.
    ours = journal_of(tmp_path / "unclipped").column("grad_norm").values
    np.testing.assert_allclose(ours[0], norms[0][0], rtol=1e-5)


def without_dropout(model: nn.Module) -> nn.Module:
    # Two ranks draw other masks than one process does on the joined batch.
    model.dropout = nn.Identity()
    return model


def sharded(rank: int, engine: str, folder: Path) -> None:
    wrap = ENGINES[engine]
    setup = Setup(
        adamw(fused=True), wrap=lambda model: wrap(without_dropout(model)), steps=23, clip=None
    )
    train(setup, folder / engine, data=batches(23, 10 + rank))


def last_full(block: Block) -> dict[str, float]:
    return {
        name: float(column.values[20])
        for name, column in block.columns.items()
        if column.present[20] and name not in CLOCKS | NO_CURVES
    }


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_telemetry_over_ranks_equals_one_process(engine: str, tmp_path: Path) -> None:
    setup = Setup(adamw(fused=True), wrap=without_dropout, steps=23, clip=None)
    joined = [torch.cat(pair) for pair in zip(batches(23, 10), batches(23, 11), strict=True)]
    train(setup, tmp_path / "alone", data=joined)
    run_ranks(sharded, 2, engine, tmp_path)
    alone, together = (last_full(journal_of(tmp_path / name)) for name in ("alone", engine))
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        tolerance = 5e-3 if name.startswith("max_") else 2e-3
        assert together[name] == pytest.approx(value, rel=tolerance, abs=1e-6), name


def with_a_slow_rank(rank: int, folder: Path) -> None:
    model = DistributedDataParallel(make_model())
    config = Config().override({"live.telemetry_every": 2})
    with watching(folder, model=model, config=config) as run:
        for batch in batches(16, rank):
            time.sleep(0.05 * rank)
            run.step(batch)


def test_a_slow_rank_is_named_with_its_host(tmp_path: Path) -> None:
    run_ranks(with_a_slow_rank, 2, tmp_path)
    (event,) = events_of(tmp_path, "slow rank")
    assert event.facts["rank"] == 1
    assert event.facts["times"] > 1.5
    assert event.facts["host"] == f"global rank 1 on {socket.gethostname()}"
