"""Engines: one model, alone or spread over the ranks that torchrun started.

    torchrun --standalone --nproc_per_node=4 -m trimtab.cli lab train RUN --set engine=fsdp2

The arithmetic is the same everywhere: weights are fp32 and autocast rounds inside the forward pass,
also under FSDP2, so that a run may change its engine between two steps.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.errors import ConfigError
from trimtab.lab.model.gpt import Gpt, Output
from trimtab.lab.model.sizes import ModelConfig
from trimtab.lab.trainer.train_config import Engine

Forward = Callable[[Tensor, Tensor], Output]
"""What the loop calls: takes tokens and targets, returns the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRanks:
    """This process among those of the run."""

    rank: int
    size: int
    device: torch.device

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean over ranks, bit-identical on all of them."""
        if self.size > 1:
            # Summed and divided, as gloo has no mean.
            dist.all_reduce(value)
        return value / self.size


@contextmanager
def join_ranks() -> Iterator[LabRanks]:
    """Join the process group, if there is one; destroy it at the end if it was created here."""
    has_gpu = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    # torchrun passes the world size and the rendezvous address in the environment.
    creates_group = "WORLD_SIZE" in os.environ and not dist.is_initialized()
    if creates_group:
        dist.init_process_group("nccl" if has_gpu else "gloo")
    try:
        if dist.is_initialized():
            yield LabRanks(rank=dist.get_rank(), size=dist.get_world_size(), device=device)
        else:
            yield LabRanks(rank=0, size=1, device=device)
    finally:
        if creates_group:
            dist.destroy_process_group()


def build_model(
    config: ModelConfig, engine: Engine, ranks: LabRanks, seed: int
) -> tuple[Gpt, Forward]:
    """Return the model with its initial weights, and the callable to use for its forward pass.

    The initial weights are bit-identical under every engine.
    """
    _check(engine, ranks)
    generator = torch.Generator().manual_seed(seed)
    if engine in (Engine.FSDP2, Engine.HSDP):
        # Built on the meta device, sharded, then filled: no rank ever holds the whole model.
        with torch.device("meta"):
            model = Gpt(config)
        _shard(model, engine, ranks)
        model.to_empty(device=ranks.device)
        model.init_weights(generator)
        return model, model
    model = Gpt(config, generator=generator).to(ranks.device)
    if engine is Engine.DDP:
        on_gpu = [ranks.device] if ranks.device.type == "cuda" else None
        return model, DistributedDataParallel(model, device_ids=on_gpu)
    return model, model


def set_gradient_sync(forward: Forward, *, enabled: bool) -> None:
    """Set whether the next backward pass averages its gradients over ranks.

    Under DDP once per step is enough. FSDP2 reduces at each micro-batch: unsharded gradients of all
    layers would not fit in memory, which is the reason to shard.
    """
    if isinstance(forward, DistributedDataParallel):
        forward.require_backward_grad_sync = enabled  # what its `no_sync()` sets


def _shard(model: Gpt, engine: Engine, ranks: LabRanks) -> None:
    """Shard with FSDP2: a unit per block, and one of embedding, last norm and head."""
    # Imported here because they take most of a second, and only sharded engines need them.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = ranks.device.type
    if engine is Engine.FSDP2:
        mesh = init_device_mesh(device, (ranks.size,))
    else:
        mesh = init_device_mesh(device, _groups(ranks), mesh_dim_names=("replica", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _groups(ranks: LabRanks) -> tuple[int, int]:
    """Number and size of HSDP's groups: one per machine, or two on a single machine."""
    on_this_machine = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
    groups = ranks.size // on_this_machine if on_this_machine < ranks.size else 2
    return groups, ranks.size // groups


def _check(engine: Engine, ranks: LabRanks) -> None:
    if engine is Engine.ALONE and ranks.size > 1:
        raise ConfigError(f"engine alone cannot use {ranks.size} ranks; use ddp, fsdp2 or hsdp")
    if engine is not Engine.ALONE and not dist.is_initialized():
        raise ConfigError(
            f"engine {engine} needs ranks; start it with: "
            "torchrun --standalone --nproc_per_node=2 -m trimtab.cli lab train ..."
        )
    if engine is Engine.HSDP and ranks.size != math.prod(_groups(ranks)):
        raise ConfigError(f"engine hsdp needs groups of equal size, got {ranks.size} ranks")
