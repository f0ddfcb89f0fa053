"""Pieces: parameters with their gradients and moments, cut to a size that is quick to work on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.live.ranks.shards import local

CPU_ELEMENTS = 2**17
"""Elements in a chunk on a processor: half a megabyte each of weights, gradients and moments, so
that all passes after the first find them in the cache. Half of it and twice of it are slower."""

DEVICE_ELEMENTS = 2**24
"""Elements in a chunk on an accelerator, which pays for each kernel and not for distance: the two
temporary tensors have 64 MB each in fp32."""


@dataclass(slots=True)
class Chunk:
    """Flat pieces of parameters, few enough to stay in the cache together."""

    indices: list[int] = field(default_factory=list)
    """The parameter that each piece belongs to."""
    weights: list[torch.Tensor] = field(default_factory=list)
    grads: list[torch.Tensor] = field(default_factory=list)
    m: list[torch.Tensor] = field(default_factory=list)
    v: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Family:
    """Parameters that one optimizer treats alike."""

    group: dict[str, Any]
    is_decoupled: bool
    step: torch.Tensor | None
    """Adam's count of updates; None if the parameters have no moments."""
    chunks: Iterator[Chunk]


def families(
    optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int]
) -> Iterator[Family]:
    """Every parameter that has a dense gradient."""
    for optimizer in optimizers:
        is_adamw = isinstance(optimizer, torch.optim.AdamW)
        for group in optimizer.param_groups:
            is_decoupled = bool(group.get("decoupled_weight_decay", is_adamw))
            for has_moments in (True, False):
                chosen = [
                    parameter
                    for parameter in group["params"]
                    if has_dense_grad(parameter)
                    and _has_moments(optimizer.state.get(parameter, {})) is has_moments
                ]
                if chosen:
                    step = optimizer.state[chosen[0]]["step"] if has_moments else None
                    cut = _cut(optimizer, chosen, index_of, has_moments)
                    yield Family(group, is_decoupled, step, cut)


def _cut(
    optimizer: Optimizer,
    parameters: Sequence[torch.Tensor],
    index_of: dict[torch.Tensor, int],
    has_moments: bool,
) -> Iterator[Chunk]:
    """The parameters' flat tensors, cut and gathered to chunks of one size."""
    is_cpu = local(parameters[0]).device.type == "cpu"
    room = most = CPU_ELEMENTS if is_cpu else DEVICE_ELEMENTS
    chunk = Chunk()
    for parameter in parameters:
        tensors = [parameter.detach(), parameter.grad]
        if has_moments:
            state = optimizer.state[parameter]
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        flat = [local(tensor).reshape(-1) for tensor in tensors if tensor is not None]
        start = 0
        while start < flat[0].numel():
            stop = min(start + room, flat[0].numel())
            chunk.indices.append(index_of[parameter])
            columns = (chunk.weights, chunk.grads, chunk.m, chunk.v)
            for column, tensor in zip(columns, flat, strict=False):
                column.append(tensor[start:stop])
            room -= stop - start
            start = stop
            if room == 0:
                yield chunk
                chunk, room = Chunk(), most
    if chunk.indices:
        yield chunk


def has_dense_grad(parameter: torch.Tensor) -> bool:
    """Whether there is a gradient, and one that norms can be taken of."""
    return parameter.grad is not None and not parameter.grad.is_sparse


def _has_moments(state: dict[str, Any]) -> bool:
    return "exp_avg" in state and "exp_avg_sq" in state
