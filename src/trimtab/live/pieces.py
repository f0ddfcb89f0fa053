"""Pieces: parameters with their gradients and moments, cut to a size that is quick to work on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.live.shards import local

CPU_ELEMENTS = 2**18
"""Elements in a chunk on a processor: a megabyte each of weights, gradients and moments, so that
all passes after the first find them in the cache."""

DEVICE_ELEMENTS = 2**24
"""Elements in a chunk on an accelerator, which pays for each kernel and not for distance: the two
temporary tensors have 64 MB each in fp32."""


@dataclass(slots=True)
class Chunk:
    """Flat pieces of parameters that one optimizer treats alike."""

    group: dict[str, Any]
    is_decoupled: bool
    step: torch.Tensor | None
    """Adam's count of updates; None if the pieces have no moments."""
    indices: list[int] = field(default_factory=list)
    """The parameter that each piece belongs to."""
    weights: list[torch.Tensor] = field(default_factory=list)
    grads: list[torch.Tensor] = field(default_factory=list)
    m: list[torch.Tensor] = field(default_factory=list)
    v: list[torch.Tensor] = field(default_factory=list)


def chunks(optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int]) -> Iterator[Chunk]:
    """Every parameter that has a dense gradient, in chunks."""
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
                step = optimizer.state[chosen[0]]["step"] if chosen and has_moments else None
                for part in _fill(optimizer, chosen, index_of, has_moments):
                    yield Chunk(group, is_decoupled, step, *part)


def _fill(
    optimizer: Optimizer,
    parameters: Sequence[torch.Tensor],
    index_of: dict[torch.Tensor, int],
    has_moments: bool,
) -> Iterator[tuple[list[Any], ...]]:
    """The parameters' flat tensors, cut and gathered to chunks of one size."""
    most = None
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    room = 0
    for parameter in parameters:
        tensors = [parameter.detach(), parameter.grad]
        if has_moments:
            state = optimizer.state[parameter]
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        flat = [local(tensor).reshape(-1) for tensor in tensors if tensor is not None]
        if most is None:
            room = most = CPU_ELEMENTS if flat[0].device.type == "cpu" else DEVICE_ELEMENTS
        start = 0
        while start < flat[0].numel():
            stop = min(start + room, flat[0].numel())
            columns[0].append(index_of[parameter])
            for column, tensor in zip(columns[1:], flat, strict=False):
                column.append(tensor[start:stop])
            room -= stop - start
            start = stop
            if room == 0:
                yield columns
                columns, room = ([], [], [], [], []), most
    if columns[0]:
        yield columns


def has_dense_grad(parameter: torch.Tensor) -> bool:
    """Whether there is a gradient, and one that norms can be taken of."""
    return parameter.grad is not None and not parameter.grad.is_sparse


def _has_moments(state: dict[str, Any]) -> bool:
    return "exp_avg" in state and "exp_avg_sq" in state
