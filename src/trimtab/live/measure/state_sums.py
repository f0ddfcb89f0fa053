"""StateSums: sums over weights, gradients and Adam's moments, for every piece of every parameter.

The update is worked out from the state after the step instead of copying the parameters before it:
a copy would need memory that a large run does not have. It is

    lr * (m / (c * s) + decay * p),   s = sqrt(v / (1 - beta2^t)) + eps,   c = 1 - beta1^t

and its square follows from sums over m/s, p and their product, so no vector of it is ever made.
What is the same for all elements (the corrections, lr, decay) is applied to the sums, not to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from trimtab.live.measure.param_chunks import ParamChunk, ParamFamily, families, weight_chunks
from trimtab.live.ranks.shards import norm_dtype, real

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]

BY_ROLE = ("param", "grad", "m", "v", "update")
"""Squares of weights, gradient, both moments and the last update."""

WHOLE = ("zeros", "grad_dot_m", "adam_grads", "grad_to_v")
"""Elements of the gradient that are exactly zero; its product with the first moment; its squares
where there are moments to compare it with; sums of g^2/v."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSums:
    """A number for each piece of what BY_ROLE and WHOLE name; zero where there are no moments."""

    indices: list[int]
    """The parameter that each piece belongs to."""
    values: torch.Tensor
    """A row for each name, a column for each piece."""
    step: torch.Tensor | None
    """Updates that Adam has counted; None if there is no Adam."""


def sum_state(
    optimizers: Sequence[Optimizer],
    index_of: dict[torch.Tensor, int],
    device: torch.device,
    *,
    is_sampled: bool = False,
) -> StateSums | None:
    """The sums of everything that has a gradient, or of a sample of it; None if nothing has."""
    indices: list[int] = []
    parts: list[torch.Tensor] = []
    step: torch.Tensor | None = None
    for family in families(optimizers, index_of, device, is_sampled=is_sampled):
        if family.step is None:
            parts.append(_without_moments(family, indices))
        else:
            step = family.step if step is None else step
            parts.append(_with_moments(family, family.step, indices))
    if not parts:
        return None
    return StateSums(indices=indices, values=torch.cat(parts, dim=1), step=step)


def sum_weights(
    parameters: Sequence[torch.Tensor], index_of: dict[torch.Tensor, int]
) -> tuple[list[int], torch.Tensor]:
    """The squares of whole weights, for each piece, with the parameter that it belongs to."""
    indices: list[int] = []
    sums = _Columns(indices)
    for chunk in weight_chunks(parameters, index_of):
        sums.add(chunk, _squares(chunk, chunk.weights))
    (found,) = sums.rows()
    return indices, found


def squares(tensors: Tensors) -> torch.Tensor:
    """The square of each tensor's norm, in fp32 whatever the tensors are."""
    parts = [real(tensor) for tensor in tensors]
    norms = torch._foreach_norm(parts, 2.0, dtype=norm_dtype(*parts))
    return torch.stack(norms).square().float()


def _without_moments(family: ParamFamily, indices: list[int]) -> torch.Tensor:
    sums = _Columns(indices)
    for chunk in family.chunks:
        sums.add(
            chunk,
            _squares(chunk, chunk.weights),
            _squares(chunk, chunk.grads),
            _zeros(chunk, chunk.grads),
        )
    param, grad, zeros = sums.rows()
    none = torch.zeros_like(grad)
    return torch.stack([param, grad, none, none, none, zeros, none, none, none])


def _with_moments(family: ParamFamily, step: torch.Tensor, indices: list[int]) -> torch.Tensor:
    beta1, beta2 = family.group["betas"]
    first, second = 1.0 - beta1**step, 1.0 - beta2**step  # no host numbers: `step` may be there
    epsilon = family.group["eps"] * second.sqrt()
    sums = _Columns(indices)
    for chunk in family.chunks:
        _sum_adam(chunk, epsilon, sums)
    param, grad, zeros, m, v, grad_dot_m, grad_to_v, direction, along = sums.rows()
    update = direction * (second / first.square())
    decay = family.group["weight_decay"] if family.is_decoupled else 0.0
    if decay:
        update = update + along * (2 * decay * second.sqrt() / first) + decay**2 * param
    rate: float | torch.Tensor = family.group["lr"]
    update = update * rate * rate
    return torch.stack([param, grad, m, v, update, zeros, grad_dot_m, grad, grad_to_v * second])


def _sum_adam(chunk: ParamChunk, epsilon: torch.Tensor, sums: "_Columns") -> None:
    """All sums of a chunk; what is summed last is m / (sqrt(v) + epsilon)."""
    found = (
        _squares(chunk, chunk.weights),
        _squares(chunk, chunk.grads),
        _zeros(chunk, chunk.grads),
        _squares(chunk, chunk.m),
        _squares(chunk, chunk.v),
        _dots(chunk, chunk.grads, chunk.m),
    )
    scale = torch._foreach_sqrt(chunk.v)
    torch._foreach_add_(scale, [epsilon] * len(scale))  # a single one is read by the host
    grad_to_v = _squares(chunk, torch._foreach_div(chunk.grads, scale))
    direction = torch._foreach_div(chunk.m, scale)
    along = _dots(chunk, direction, chunk.weights)
    sums.add(chunk, *found, grad_to_v, _squares(chunk, direction), along)


class _Columns:
    """Gathers one number per piece and row, chunk by chunk."""

    def __init__(self, indices: list[int]) -> None:
        self._indices = indices
        """Those of all pieces so far, also of other families."""
        self._rows: list[list[torch.Tensor]] = []

    def add(self, chunk: ParamChunk, *rows: torch.Tensor) -> None:
        """Take the numbers of one chunk."""
        self._indices += chunk.indices
        self._rows = self._rows or [[] for _ in rows]
        for row, numbers in zip(self._rows, rows, strict=True):
            row.append(numbers)

    def rows(self) -> list[torch.Tensor]:
        """The numbers of all chunks, row by row."""
        return [torch.cat(row).float() for row in self._rows]


def _squares(chunk: ParamChunk, pieces: Tensors) -> torch.Tensor:
    """The square of each piece's norm."""
    is_cpu = pieces[0].device.type == "cpu"
    if chunk.is_joined or (is_cpu and all(piece.dtype == torch.float32 for piece in pieces)):
        # Half the time of a norm on a processor; elsewhere all norms are one kernel.
        return _dots(chunk, pieces, pieces)
    norms = torch._foreach_norm(pieces, 2.0, dtype=norm_dtype(*pieces))
    return torch.stack(torch._foreach_mul(norms, norms))


def _dots(chunk: ParamChunk, ones: Tensors, others: Tensors) -> torch.Tensor:
    """The inner product of each pair."""
    # In fp32: the cosine of two parallel bf16 vectors is over 1 otherwise.
    if chunk.is_joined:
        return _sum_pieces(chunk, _wide(ones[0]) * _wide(others[0]))
    return torch.stack([_wide(a).dot(_wide(b)) for a, b in zip(ones, others, strict=True)])


def _zeros(chunk: ParamChunk, pieces: Tensors) -> torch.Tensor:
    """How many elements of each piece are exactly zero."""
    # Ones and zeros added up by a dot take half the time of `count_nonzero`.
    ones = [torch.eq(p, 0, out=torch.empty_like(p, dtype=torch.float32)) for p in pieces]
    return _sum_pieces(chunk, ones[0]) if chunk.is_joined else _dots(chunk, ones, ones)


def _sum_pieces(chunk: ParamChunk, joined: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor(chunk.lengths, dtype=torch.int64, device=joined.device)
    return torch.segment_reduce(joined, "sum", lengths=lengths, unsafe=True)


def _wide(piece: torch.Tensor) -> torch.Tensor:
    return piece.float() if piece.dtype in (torch.bfloat16, torch.float16) else piece
