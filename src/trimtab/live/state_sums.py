"""StateSums: sums over weights, gradients and Adam's moments, for every piece of every parameter.

The update is worked out from the state after the step instead of copying the parameters before it:
a copy would need memory that a large run does not have. It is

    lr * (m / (c * s) + decay * p),   s = sqrt(v / (1 - beta2^t)) + eps,   c = 1 - beta1^t

and its square follows from sums over m/s, p and their product, so no vector of it is ever made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch.optim import Optimizer

from trimtab.live.pieces import Chunk, chunks
from trimtab.live.shards import norm_dtype

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSums:
    """One number for each piece, and the parameter that each piece belongs to."""

    indices: list[int]
    grad: torch.Tensor
    """Squares of the gradient."""
    zeros: torch.Tensor
    """Elements of the gradient that are exactly zero."""
    m: torch.Tensor
    v: torch.Tensor
    """Squares of the moments; zero where there are none, as for all that follows."""
    update: torch.Tensor
    """Squares of the last update."""
    grad_dot_m: torch.Tensor
    grad_of_adam: torch.Tensor
    """Squares of the gradient, where there are moments to compare it with."""
    grad_to_v: torch.Tensor
    """Sums of g^2/v."""
    step: torch.Tensor | None
    """Updates that Adam has counted; None if there is no Adam."""


def sum_state(
    optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int]
) -> StateSums | None:
    """The sums of everything that has a gradient; None if nothing has."""
    parts = [_measure(chunk) for chunk in chunks(optimizers, index_of)]
    if not parts:
        return None
    names = [f.name for f in fields(StateSums) if f.name not in ("indices", "step")]
    return StateSums(
        indices=[index for part in parts for index in part.indices],
        step=next((part.step for part in parts if part.step is not None), None),
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in names},
    )


def squares(tensors: Tensors) -> torch.Tensor:
    """The square of each tensor's norm, in fp32 whatever the tensors are."""
    norms = torch._foreach_norm(tensors, 2.0, dtype=norm_dtype(*tensors))
    return torch.stack(norms).square().float()


def products(ones: Tensors, others: Tensors) -> torch.Tensor:
    """The inner product of each pair."""
    return torch.stack([torch.dot(a, b) for a, b in zip(ones, others, strict=True)]).float()


def _measure(chunk: Chunk) -> StateSums:
    grad = squares(chunk.grads)
    zeros = torch.stack([g.numel() - torch.count_nonzero(g) for g in chunk.grads]).float()
    none = torch.zeros_like(grad)
    if chunk.step is None:
        return StateSums(
            indices=chunk.indices,
            grad=grad,
            zeros=zeros,
            m=none,
            v=none,
            update=none,
            grad_dot_m=none,
            grad_of_adam=none,
            grad_to_v=none,
            step=None,
        )
    step = chunk.step.to(grad.device, torch.float32, non_blocking=True).reshape(())
    beta1, beta2 = chunk.group["betas"]
    m, v = squares(chunk.m), squares(chunk.v)
    grad_dot_m = products(chunk.grads, chunk.m)

    inverse = torch._foreach_sqrt(chunk.v)
    torch._foreach_div_(inverse, torch.sqrt(1.0 - beta2**step))  # no host number: it may be there
    torch._foreach_add_(inverse, chunk.group["eps"])
    torch._foreach_reciprocal_(inverse)
    grad_to_v = squares(torch._foreach_mul(chunk.grads, inverse))
    torch._foreach_mul_(inverse, chunk.m)
    return StateSums(
        indices=chunk.indices,
        grad=grad,
        zeros=zeros,
        m=m,
        v=v,
        update=_update(chunk, inverse, 1.0 - beta1**step),
        grad_dot_m=grad_dot_m,
        grad_of_adam=grad,
        grad_to_v=grad_to_v,
        step=step,
    )


def _update(chunk: Chunk, direction: Tensors, correction: torch.Tensor) -> torch.Tensor:
    """The square of each piece's last update; `direction` is m/s."""
    update = squares(direction) / correction.square()
    decay = chunk.group["weight_decay"] if chunk.is_decoupled else 0.0
    if decay:
        along = products(direction, chunk.weights) / correction
        update = update + 2 * decay * along + decay**2 * squares(chunk.weights)
    rate: float | torch.Tensor = chunk.group["lr"]
    return update * rate * rate
