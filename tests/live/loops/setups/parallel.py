"""Set-ups on several ranks."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from tests.kit.tiny import batches, loss_of
from tests.live.loops.ranks.one_process import plain_model
from tests.live.loops.setups.trial import STEPS, Factor, Learned, SetUp, learned
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

Build = Callable[[], Any]


def ddp(**options: Any) -> Build:
    return lambda: DistributedDataParallel(plain_model(), **options)


def fsdp1(**options: Any) -> Build:
    device = torch.device("cpu")
    return lambda: FullyShardedDataParallel(plain_model(), device_id=device, **options)


def shard(model: Any, mesh: Any, **options: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    result: nn.Module = model
    return result


def fsdp2(**options: Any) -> Build:
    return lambda: shard(
        plain_model(), init_device_mesh("cpu", (dist.get_world_size(),)), **options
    )


def hsdp() -> nn.Module:
    names = ("replicate", "shard")
    return shard(plain_model(), init_device_mesh("cpu", (2, 2), mesh_dim_names=names))


def split(model: Any, mesh: Any) -> Any:
    for block in model.blocks:
        plan = {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
        parallelize_module(block, mesh, plan)
    return model


def tensor_parallel() -> Any:
    return split(plain_model(), init_device_mesh("cpu", (2,)))


def replicated_tensor_parallel() -> Any:
    """Pairs of ranks hold the shards, and each pair holds the whole model."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return split(plain_model(), mesh["tp"])


def fsdp2_over_tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return shard(split(plain_model(), mesh["tp"]), mesh["dp"])


def plain_adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=False)


def plain_optimizer(model: nn.Module) -> Any:
    return plain_adamw(model.parameters())


def zero_optimizer(model: nn.Module) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns when it is imported

    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)


def parallel(
    build: Build,
    optimizer: Callable[[nn.Module], Any] = plain_optimizer,
    *,
    accumulate: int = 1,
    same_data: bool = False,
    clip: str = "",
) -> Callable[..., Learned]:
    """A loop on this rank; the NaN is only in the last rank's batch."""

    def train(watch: Any, factor: Factor) -> Learned:
        rank = dist.get_rank()
        model: Any = build()
        update = optimizer(model)
        data = batches(STEPS * accumulate, seed=1 if same_data else rank + 1)
        with watch(model, update) as guard:
            for step in range(STEPS):
                by = factor(step)
                if by is None:
                    continue
                if rank != dist.get_world_size() - 1 and not same_data:
                    by = 1.0
                for micro in range(accumulate):
                    is_last = micro == accumulate - 1
                    context = contextlib.nullcontext() if is_last else model.no_sync()
                    with context:
                        loss = loss_of(model, data[step * accumulate + micro]) * by
                        guard.record(loss=loss, tokens=36)
                        (loss / accumulate).backward()
                if clip == "guard":
                    guard.clip_grad_norm_(0.5)
                elif clip == "model":
                    model.clip_grad_norm_(0.5)
                update.step()
                update.zero_grad()
        return learned(model.parameters())

    return train


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
ENGINES: dict[str, tuple[Callable[..., Learned], int]] = {
    "DDP, 2 ranks": (parallel(ddp()), 2),
    "DDP, 4 ranks, clipped by the guard": (parallel(ddp(), clip="guard"), 4),
    "DDP, no_sync accumulation": (parallel(ddp(), accumulate=3), 2),
    "DDP, gradients as bucket views": (parallel(ddp(gradient_as_bucket_view=True)), 2),
    "DDP, static graph": (parallel(ddp(static_graph=True)), 2),
    "ZeroRedundancyOptimizer": (parallel(ddp(), zero_optimizer), 2),
    "FSDP2, 2 ranks": (parallel(fsdp2()), 2),
    "FSDP2, 4 ranks, clipped by the guard": (parallel(fsdp2(), clip="guard"), 4),
    "FSDP2, bf16 parameters": (parallel(fsdp2(mp_policy=BF16)), 2),
    "FSDP2, CPU offload": (parallel(fsdp2(offload_policy=CPUOffloadPolicy(pin_memory=False))), 2),
    "HSDP, 2 x 2": (parallel(hsdp), 4),
    "FSDP1": (parallel(fsdp1(), clip="model"), 2),
    "FSDP1, original parameters": (parallel(fsdp1(use_orig_params=True), clip="model"), 2),
    "tensor parallel": (parallel(tensor_parallel, same_data=True), 2),
    "FSDP2 x tensor parallel, 2 x 2": (parallel(fsdp2_over_tensor_parallel, same_data=True), 4),
}


def parallel_setups() -> Iterator[SetUp]:
    """One set-up for each engine."""
    for name, (train, world) in ENGINES.items():
        yield SetUp(name=name, group="ranks", train=train, ranks=world)
