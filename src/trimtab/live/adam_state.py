"""Adam's state as numbers: what the last update was, and how gradient and moments relate.

Everything is worked out from the state after the step instead of copying the parameters before it:
a copy would need memory that a large run does not have. The update is

    lr * (m / (c * s) + decay * p),   s = sqrt(v / (1 - beta2^t)) + eps,   c = 1 - beta1^t

and its square follows from sums over m/s, p and their product, so no vector of it is ever made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.live.norms import SquareSums
from trimtab.live.shards import local

CHUNK_ELEMENTS = {"cpu": 2**20}
LARGE_CHUNK_ELEMENTS = 2**24
"""Elements worked on at once. A processor is quickest within its caches; an accelerator pays for
each kernel, so it takes more at a time: two temporary tensors of 64 MB in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSums:
    """This rank's share of sums over all parameters that Adam moves."""

    m: torch.Tensor
    """Squares of the first moment, by role."""
    v: torch.Tensor
    """Squares of the second moment, by role."""
    update: torch.Tensor
    """Squares of the last update, by role."""
    grad_dot_m: torch.Tensor
    """Sum of gradient times first moment."""
    grad_squares: torch.Tensor
    grad_to_v: torch.Tensor
    """Sum of g^2/v."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Parameters of one group that are worked on at once, with their squares if known."""

    group: dict[str, Any]
    decay: float
    indices: list[int]
    parameters: list[torch.Tensor]
    states: list[dict[str, torch.Tensor]]


def measure_adam(
    optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int], sums: SquareSums
) -> tuple[AdamSums, torch.Tensor] | None:
    """The sums over everything that has Adam's moments, and Adam's step; None if nothing has."""
    size = CHUNK_ELEMENTS.get(sums.device.type, LARGE_CHUNK_ELEMENTS)
    chunks = list(_chunks(optimizers, index_of, size))
    if not chunks:
        return None
    found = [_measure(chunk, sums) for chunk in chunks]
    added = {f.name: sum(getattr(part, f.name) for part in found) for f in fields(AdamSums)}
    return AdamSums(**added), _step(chunks[0], sums)


def _chunks(
    optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int], most_elements: int
) -> Iterator[_Chunk]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            is_adamw = isinstance(optimizer, torch.optim.AdamW)
            decoupled = group.get("decoupled_weight_decay", is_adamw)
            decay = group["weight_decay"] if decoupled else 0.0
            chunk, size = _Chunk(group, decay, [], [], []), 0
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if not _has_moments(parameter, state):
                    continue
                if size and size + local(parameter).numel() > most_elements:
                    yield chunk
                    chunk, size = _Chunk(group, decay, [], [], []), 0
                chunk.indices.append(index_of[parameter])
                chunk.parameters.append(parameter)
                chunk.states.append(state)
                size += local(parameter).numel()
            if chunk.indices:
                yield chunk


def _has_moments(parameter: torch.Tensor, state: dict[str, torch.Tensor]) -> bool:
    has_dense_grad = parameter.grad is not None and not parameter.grad.is_sparse
    return has_dense_grad and "exp_avg" in state and "exp_avg_sq" in state


def _measure(chunk: _Chunk, sums: SquareSums) -> AdamSums:
    places = chunk.indices
    m = [local(state["exp_avg"]) for state in chunk.states]
    v = [local(state["exp_avg_sq"]) for state in chunk.states]
    grads = [local(p.grad) for p in chunk.parameters if p.grad is not None]
    weights = [local(parameter.detach()) for parameter in chunk.parameters]
    step = _step(chunk, sums)
    beta1, beta2 = chunk.group["betas"]
    second = torch.sqrt(1.0 - beta2**step)

    inverse = torch._foreach_sqrt(v)
    torch._foreach_div_(inverse, second)  # by a tensor: the step is never read on the host
    torch._foreach_add_(inverse, chunk.group["eps"])
    torch._foreach_reciprocal_(inverse)
    relative = sums.squares(places, torch._foreach_mul(grads, inverse))
    torch._foreach_mul_(inverse, m)
    direction = inverse
    factor = 1.0 / (1.0 - beta1**step)
    update = factor.square() * sums.squares(places, direction)
    if chunk.decay:
        update = update + 2 * factor * chunk.decay * sums.products(places, direction, weights)
        update = update + chunk.decay**2 * sums.squares(places, weights)
    rate = chunk.group["lr"]
    return AdamSums(
        m=sums.by_role(places, sums.squares(places, m)),
        v=sums.by_role(places, sums.squares(places, v)),
        update=sums.by_role(places, rate * rate * update),
        grad_dot_m=sums.products(places, grads, m).sum(),
        grad_squares=sums.squares(places, grads).sum(),
        grad_to_v=relative.sum(),
    )


def _step(chunk: _Chunk, sums: SquareSums) -> torch.Tensor:
    """The updates that Adam has counted; a tensor, because it may live on the device."""
    step = chunk.states[0]["step"]
    return step.to(sums.device, torch.float32, non_blocking=True).reshape(())
