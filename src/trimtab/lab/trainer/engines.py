"""Engines: one process, or the ranks that torchrun started, each with the whole model (DDP).

torchrun --standalone --nproc_per_node=4 -m trimtab.cli lab train RUN
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from trimtab.lab.model.gpt import Gpt, Output
from trimtab.lab.model.sizes import ModelConfig

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


def build_model(config: ModelConfig, ranks: LabRanks, seed: int) -> tuple[Gpt, Forward]:
    """Return the model with its initial weights, and the callable to use for its forward pass."""
    generator = torch.Generator().manual_seed(seed)
    model = Gpt(config, generator=generator).to(ranks.device)
    if ranks.size > 1:
        on_gpu = [ranks.device] if ranks.device.type == "cuda" else None
        return model, DistributedDataParallel(model, device_ids=on_gpu)
    return model, model


def set_gradient_sync(forward: Forward, *, enabled: bool) -> None:
    """Set whether the next backward pass averages its gradients over ranks: once a step."""
    if isinstance(forward, DistributedDataParallel):
        forward.require_backward_grad_sync = enabled  # what its `no_sync()` sets
