"""StateSums: sums over weights, gradients and Adam's moments, for every piece of every parameter.

Parameters with their gradients and moments are cut into chunks that are quick to work on
(`ParamChunk`), summed, and the sums are added up by role and layer so that each shard counts once
(`ShardWeights`).

The update is worked out from the state after the step instead of copying the parameters before it:
a copy would need memory that a large run does not have. It is

    lr * (m / (c * s) + decay * p),   s = sqrt(v / (1 - beta2^t)) + eps,   c = 1 - beta1^t

and its square follows from sums over m/s, p and their product, so no vector of it is ever made.
What is the same for all elements (the corrections, lr, decay) is applied to the sums, not to them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.live.measure.roles import Roles
from trimtab.live.ranks.shards import norm_dtype, real
from trimtab.state.host_copy import local

CPU_ELEMENTS = 2**17
"""Elements in a chunk on a processor: half a megabyte each of weights, gradients and moments, so
that all passes after the first find them in the cache. Half of it and twice of it are slower."""

DEVICE_ELEMENTS = 2**24
"""Elements in a chunk on an accelerator, which pays for each kernel and not for distance: the two
temporary tensors have 64 MB each in fp32."""

SMALL_ELEMENTS = 4096
"""Tensors up to this size are joined and summed together: an operation on each would cost more than
the sums. A model of 10,000 small tensors took 1.3 s for its telemetry otherwise."""


@dataclass(slots=True)
class ParamChunk:
    """Flat pieces of parameters that are summed together; on a processor one, or many small."""

    is_joined: bool = False
    """Whether each column is one tensor with all pieces in it, by `lengths`."""
    lengths: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    """The parameter that each piece belongs to."""
    weights: list[torch.Tensor] = field(default_factory=list)
    grads: list[torch.Tensor] = field(default_factory=list)
    m: list[torch.Tensor] = field(default_factory=list)
    v: list[torch.Tensor] = field(default_factory=list)

    @property
    def columns(self) -> tuple[list[torch.Tensor], ...]:
        """Weights, gradients and moments, in this order; the last ones may be missing."""
        return self.weights, self.grads, self.m, self.v


@dataclass(slots=True)
class ParamFamily:
    """Parameters that one optimizer treats alike."""

    group: dict[str, Any]
    is_decoupled: bool
    step: torch.Tensor | None
    """Adam's count of updates; None if the parameters have no moments that we can read."""
    chunks: Iterator[ParamChunk]


def families(
    optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int], device: torch.device
) -> Iterator[ParamFamily]:
    """Every known parameter on the device that has a dense, real gradient."""
    for optimizer in optimizers:
        is_adamw = isinstance(optimizer, torch.optim.AdamW)
        for group in optimizer.param_groups:
            is_decoupled = bool(group.get("decoupled_weight_decay", is_adamw))
            with_moments: list[torch.Tensor] = []
            without_moments: list[torch.Tensor] = []
            for parameter in group["params"]:
                if parameter in index_of and _is_readable(parameter, device):
                    has = _has_moments(optimizer.state.get(parameter, {}), group, parameter)
                    (with_moments if has else without_moments).append(parameter)
            for chosen, has in ((with_moments, True), (without_moments, False)):
                if chosen:
                    step = _step_of(optimizer.state[chosen[0]], device) if has else None
                    cut = _cut(chosen, index_of, _tensors_of(optimizer, has))
                    yield ParamFamily(group, is_decoupled, step, cut)


def _tensors_of(
    optimizer: Optimizer, has_moments: bool
) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """A parameter with its gradient and moments, as this rank holds them."""

    def tensors_of(parameter: torch.Tensor) -> list[torch.Tensor]:
        tensors = [parameter, parameter.grad]
        if has_moments:
            state = optimizer.state[parameter]
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        return [local(tensor) for tensor in tensors if tensor is not None]

    return tensors_of


def _cut(
    parameters: Sequence[torch.Tensor],
    index_of: dict[torch.Tensor, int],
    tensors_of: Callable[[torch.Tensor], list[torch.Tensor]],
) -> Iterator[ParamChunk]:
    """Yield the parameters' flat tensors in chunks of one size."""
    is_cpu = local(parameters[0]).device.type == "cpu"
    room = limit = CPU_ELEMENTS if is_cpu else DEVICE_ELEMENTS
    chunk = ParamChunk()
    small: list[tuple[int, list[torch.Tensor]]] = []
    for parameter in parameters:
        parts = tensors_of(parameter)
        if parts[0].numel() <= SMALL_ELEMENTS and is_cpu:
            small.append((index_of[parameter], parts))
            continue
        for pieces in zip(*(part.reshape(-1).split(limit) for part in parts), strict=True):
            size = pieces[0].numel()
            if chunk.indices and (is_cpu or size > room):
                yield chunk
                chunk, room = ParamChunk(), limit
            chunk.indices.append(index_of[parameter])
            for column, piece in zip(chunk.columns, pieces, strict=False):
                column.append(piece)
            room -= size
    if chunk.indices:
        yield chunk
    if small:
        yield from _join(small)


def _join(small: list[tuple[int, list[torch.Tensor]]]) -> Iterator[ParamChunk]:
    """Small tensors, many to a chunk."""
    while small:
        taken, size = 0, 0
        while taken < len(small) and size < CPU_ELEMENTS:
            size += small[taken][1][0].numel()
            taken += 1
        now, small = small[:taken], small[taken:]
        columns = [list(column) for column in zip(*(parts for _, parts in now), strict=True)]
        joined = [[torch._C._nn.flatten_dense_tensors(column)] for column in columns]
        lengths = [parts[0].numel() for _, parts in now]
        chunk = ParamChunk(is_joined=True, lengths=lengths, indices=[index for index, _ in now])
        for column, tensor in zip(chunk.columns, joined, strict=False):
            column += tensor
        yield chunk


def _is_readable(parameter: torch.Tensor, device: torch.device) -> bool:
    """Whether there is a gradient that sums can be taken of."""
    gradient = parameter.grad
    return (
        gradient is not None
        and not gradient.is_sparse
        and not gradient.is_complex()
        and local(parameter).device == device
    )


def _has_moments(state: Any, group: dict[str, Any], parameter: torch.Tensor) -> bool:
    """Whether the state is Adam's as torch keeps it; other packages use the same names freely."""
    if not isinstance(state, dict) or not {"exp_avg", "exp_avg_sq", "step"} <= state.keys():
        return False
    betas = group.get("betas")
    return (
        isinstance(betas, list | tuple)
        and len(betas) == 2
        and isinstance(group.get("eps"), float)
        and isinstance(group.get("lr"), float | int | torch.Tensor)
        and isinstance(state["step"], float | int | torch.Tensor)
        and all(_is_moment(state[name], parameter) for name in ("exp_avg", "exp_avg_sq"))
    )


def _is_moment(moment: Any, parameter: torch.Tensor) -> bool:
    # By exact type: a quantized moment is a tensor subclass that computes in ways of its own.
    return type(moment) in (torch.Tensor, type(parameter), type(parameter.data)) and (
        moment.shape == parameter.shape and moment.dtype == parameter.dtype
    )


def _step_of(state: dict[str, Any], device: torch.device) -> torch.Tensor:
    step = state["step"]
    if isinstance(step, torch.Tensor):
        return local(step).to(device, torch.float32, non_blocking=True).reshape(())
    return torch.full((), float(step), dtype=torch.float32, device=device)


_CACHE_SIZE = 8
"""Sets of parameters whose places are kept on the device: where layers are dropped at random, every
step has another set."""


class ShardWeights:
    """Adds up numbers that belong to parameters, each named by its parameter's index."""

    def __init__(self, copies: Sequence[float], roles: Roles, device: torch.device) -> None:
        self.device = device
        self.num_roles, self.num_layers = len(roles.names), len(roles.layers)
        self._role = torch.tensor(roles.index, dtype=torch.int64, device=device)
        self._layer = torch.tensor(roles.layer_index, dtype=torch.int64, device=device)
        # What several ranks hold alike must count once after the ranks have been added up.
        weights = [1.0 / number for number in copies]
        self._weight = torch.tensor(weights, dtype=torch.float32, device=device)
        self._places: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()

    def weights(self, indices: Sequence[int]) -> torch.Tensor:
        """What this rank's part of each parameter counts in a sum over ranks."""
        return self._weight[self._place(indices)]

    def by_role(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each role; of several rows of values, a row of sums for each."""
        return self._gather(self._role[self._place(indices)], values, self.num_roles)

    def by_layer(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each layer, in rows as `by_role`; what is in no layer is left out."""
        sums = self._gather(self._layer[self._place(indices)], values, self.num_layers + 1)
        return sums[..., :-1]

    def _gather(self, index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
        # Not a product with a 0/1 matrix: 0 x NaN would spread one bad tensor over all sums.
        shape = (*values.shape[:-1], size)
        sums = torch.zeros(shape, dtype=torch.float32, device=self.device)
        return sums.index_add_(-1, index, values)

    def _place(self, indices: Sequence[int]) -> torch.Tensor:
        """The indices on the device; the last few sets are kept there."""
        key = tuple(indices)
        if key not in self._places:
            self._places[key] = torch.tensor(key, dtype=torch.int64, device=self.device)
            if len(self._places) > _CACHE_SIZE:
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        return self._places[key]


Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]

BY_ROLE = ("param", "grad", "m", "v", "update")
"""Squares of weights, gradient, both moments and the last update."""

UNKNOWN = -1e30
"""Stands for the square of an update that is not known, of pieces with a gradient and no moments
that can be read: no sum with such a piece in it is positive."""

ROWS_OF_STATE = tuple(BY_ROLE.index(name) for name in ("param", "m", "v"))

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
    optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int], device: torch.device
) -> StateSums | None:
    """The sums of all parameters; None if there are none on this device.

    What has no gradient in this step counts with its weights and moments: layers that are dropped
    and experts without a token would otherwise look like state that was lost.
    """
    indices: list[int] = []
    parts: list[torch.Tensor] = []
    for family in families(optimizers, index_of, device):
        if family.step is None:
            parts.append(_without_moments(family, indices))
        else:
            parts.append(_with_moments(family, family.step, indices))
    parts += _without_gradient(optimizers, index_of, indices, device)
    if not parts:
        return None
    step = _count_of_updates(optimizers, device)
    return StateSums(indices=indices, values=torch.cat(parts, dim=1), step=step)


def _without_gradient(
    optimizers: Sequence[Optimizer],
    index_of: dict[torch.Tensor, int],
    indices: list[int],
    device: torch.device,
) -> Iterator[torch.Tensor]:
    """The squares of weights and moments of parameters that are not in `indices` yet."""
    known = set(indices)
    for optimizer in optimizers:
        columns: dict[bool, list[list[torch.Tensor]]] = {True: [], False: []}
        places: dict[bool, list[int]] = {True: [], False: []}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                index = index_of.get(parameter)
                if index is None or index in known or local(parameter).device != device:
                    continue
                known.add(index)
                state = optimizer.state.get(parameter, {})
                has = _has_moments(state, group, parameter)
                tensors = [parameter.detach()]
                tensors += [state["exp_avg"], state["exp_avg_sq"]] if has else []
                columns[has].append([local(tensor) for tensor in tensors])
                places[has].append(index)
        for has, rows in ((True, ROWS_OF_STATE), (False, ROWS_OF_STATE[:1])):
            if columns[has]:
                indices += places[has]
                shape = (len(BY_ROLE) + len(WHOLE), len(places[has]))
                part = torch.zeros(shape, dtype=torch.float32, device=device)
                for row, column in zip(rows, zip(*columns[has], strict=True), strict=True):
                    part[row] = squares(column)
                yield part


def _count_of_updates(optimizers: Sequence[Optimizer], device: torch.device) -> torch.Tensor | None:
    """The updates that Adam has counted, by the first parameter of each group: the largest, since
    a group may join later or be left out of a step."""
    steps = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            states = ((p, optimizer.state.get(p, {})) for p in group["params"])
            found = next((s for p, s in states if _has_moments(s, group, p)), None)
            if found is not None:
                steps.append(_step_of(found, device))
    return torch.stack(steps).amax() if steps else None


def squares(tensors: Tensors) -> torch.Tensor:
    """The square of each tensor's norm, in fp32 whatever the tensors are."""
    parts = [real(tensor) for tensor in tensors]
    norms = torch._foreach_norm(parts, 2.0, dtype=norm_dtype(*parts))
    return torch.stack(norms).square().float()


def _without_moments(family: ParamFamily, indices: list[int]) -> torch.Tensor:
    sums = _Columns(indices)
    for chunk in family.chunks:
        weights, grads = _squares(chunk, chunk.weights), _squares(chunk, chunk.grads)
        sums.add(chunk, weights, grads, _zeros(chunk, chunk.grads))
    param, grad, zeros = sums.rows()
    none = torch.zeros_like(grad)
    update = torch.full_like(grad, UNKNOWN)
    return torch.stack([param, grad, none, none, update, zeros, none, none, none])


def _with_moments(family: ParamFamily, step: torch.Tensor, indices: list[int]) -> torch.Tensor:
    beta1, beta2 = family.group["betas"]
    first, second = 1.0 - beta1**step, 1.0 - beta2**step  # no host numbers: `step` may be there
    epsilon = family.group["eps"] * second.sqrt()
    sums, scratch = _Columns(indices), _Scratch()
    for chunk in family.chunks:
        _sum_adam(chunk, epsilon, sums, scratch)
    param, grad, zeros, m, v, grad_dot_m, grad_to_v, direction, along = sums.rows()
    update = direction * (second / first.square())
    decay = family.group["weight_decay"] if family.is_decoupled else 0.0
    if decay:
        update = update + along * (2 * decay * second.sqrt() / first) + decay**2 * param
    rate: float | torch.Tensor = family.group["lr"]
    update = update * rate * rate
    return torch.stack([param, grad, m, v, update, zeros, grad_dot_m, grad, grad_to_v * second])


def _sum_adam(
    chunk: ParamChunk, epsilon: torch.Tensor, sums: "_Columns", scratch: "_Scratch"
) -> None:
    """Add all sums of a chunk; what is summed last is m / (sqrt(v) + epsilon)."""
    if not chunk.is_joined and chunk.weights[0].device.type == "cpu":
        _sum_adam_on_cpu(chunk, epsilon, sums, scratch)
        return
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


def _sum_adam_on_cpu(
    chunk: ParamChunk, epsilon: torch.Tensor, sums: "_Columns", scratch: "_Scratch"
) -> None:
    """Add the same sums of a single piece, in two thirds of the time: nothing is allocated, and
    what is in the cache is used at once."""
    weight, grad, m, v = (_wide(column[0]) for column in chunk.columns)
    scale, work = scratch.like(weight)
    grads = grad.dot(grad)
    torch.eq(grad, 0, out=work)  # ones and zeros: summed by a dot, twice as fast as counted
    zeros, means, grad_dot_m = work.dot(work), m.dot(m), grad.dot(m)
    squares_of_v = v.dot(v)
    torch.sqrt(v, out=scale).add_(epsilon)
    torch.div(grad, scale, out=work)
    grad_to_v = work.dot(work)
    torch.div(m, scale, out=work)
    direction, along = work.dot(work), work.dot(weight)
    found = (weight.dot(weight), grads, zeros, means, squares_of_v, grad_dot_m)
    sums.add(chunk, *([number] for number in (*found, grad_to_v, direction, along)))


class _Scratch:
    """Two temporary pieces of memory for all pieces on a processor."""

    def __init__(self) -> None:
        self._rows: dict[torch.dtype, list[torch.Tensor]] = {}

    def like(self, piece: torch.Tensor) -> list[torch.Tensor]:
        """Return both, of the piece's length and type."""
        rows = self._rows.get(piece.dtype)
        if rows is None:
            rows = [torch.empty(CPU_ELEMENTS, dtype=piece.dtype) for _ in range(2)]
            self._rows[piece.dtype] = rows
        size = piece.numel()
        return rows if size == CPU_ELEMENTS else [row[:size] for row in rows]


class _Columns:
    """Gathers one number per piece and row, chunk by chunk."""

    def __init__(self, indices: list[int]) -> None:
        self._indices = indices
        """Those of all pieces so far, also of other families."""
        self._rows: list[list[torch.Tensor]] = []

    def add(self, chunk: ParamChunk, *rows: Tensors) -> None:
        """Add the numbers of one chunk: in each row one for each piece."""
        self._indices += chunk.indices
        self._rows = self._rows or [[] for _ in rows]
        for row, numbers in zip(self._rows, rows, strict=True):
            row += numbers

    def rows(self) -> list[torch.Tensor]:
        return [torch.stack(row).float() for row in self._rows]


def _squares(chunk: ParamChunk, pieces: Tensors) -> Tensors:
    if chunk.is_joined or pieces[0].device.type == "cpu":
        # Half the time of a norm on a processor; elsewhere all norms are one kernel.
        return _dots(chunk, pieces, pieces)
    norms = torch._foreach_norm(pieces, 2.0, dtype=norm_dtype(*pieces))
    return torch._foreach_mul(norms, norms)


def _dots(chunk: ParamChunk, ones: Tensors, others: Tensors) -> Tensors:
    # In fp32: the cosine of two parallel bf16 vectors is over 1 otherwise.
    if chunk.is_joined:
        return _sum_pieces(chunk, _wide(ones[0]) * _wide(others[0]))
    return [_wide(a).dot(_wide(b)) for a, b in zip(ones, others, strict=True)]


def _zeros(chunk: ParamChunk, pieces: Tensors) -> Tensors:
    ones = [torch.eq(p, 0, out=torch.empty_like(p, dtype=torch.float32)) for p in pieces]
    return _sum_pieces(chunk, ones[0]) if chunk.is_joined else _dots(chunk, ones, ones)


def _sum_pieces(chunk: ParamChunk, joined: torch.Tensor) -> Tensors:
    lengths = _as_tensor(tuple(chunk.lengths))
    return torch.segment_reduce(joined, "sum", lengths=lengths, unsafe=True).unbind()


@lru_cache(maxsize=64)
def _as_tensor(lengths: tuple[int, ...]) -> torch.Tensor:
    """Return lengths as a tensor on the processor, where alone pieces are joined."""
    return torch.tensor(lengths, dtype=torch.int64, device="cpu")


def _wide(piece: torch.Tensor) -> torch.Tensor:
    return piece.float() if piece.dtype in (torch.bfloat16, torch.float16) else piece
