"""Parameters with their gradients and moments, cut into chunks that are quick to work on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

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

SAMPLE_RUNS, RUN_ELEMENTS = 32, 32
"""A sample of a tensor: runs of neighbours, evenly spread, so that all rows of a matrix or an
embedding have their part. 1,024 elements give a norm within 3 %; its changes from step to step,
which are what is judged, are those of the same elements."""


@dataclass(slots=True)
class ParamChunk:
    """Flat pieces of parameters, few enough to stay in the cache together."""

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


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the same few elements of a tensor at every step; all of them if it is small."""
    size, wanted = tensor.numel(), SAMPLE_RUNS * RUN_ELEMENTS
    if size <= wanted:
        return tensor.reshape(-1)
    apart = (size - RUN_ELEMENTS) // (SAMPLE_RUNS - 1)
    flat = tensor if tensor.is_contiguous() else tensor.reshape(-1)
    shape, strides = (SAMPLE_RUNS, RUN_ELEMENTS), (apart, 1)
    return flat.as_strided(shape, strides, flat.storage_offset())


def families(
    optimizers: Sequence[Optimizer],
    index_of: dict[torch.Tensor, int],
    device: torch.device,
    *,
    is_sampled: bool = False,
) -> Iterator[ParamFamily]:
    """Every known parameter on the device that has a dense, real gradient, or a sample of each."""
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
                    cut = _cut(chosen, index_of, _tensors_of(optimizer, has, is_sampled))
                    yield ParamFamily(group, is_decoupled, step, cut)


def weight_chunks(
    parameters: Sequence[torch.Tensor], index_of: dict[torch.Tensor, int]
) -> Iterator[ParamChunk]:
    """The weights alone, whole."""
    # They are read once, so the cache is of no use: uncut, this takes half the time.
    return _cut(parameters, index_of, lambda p: [local(p.detach())], DEVICE_ELEMENTS)


def _tensors_of(
    optimizer: Optimizer, has_moments: bool, is_sampled: bool
) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """A parameter with its gradient and moments, as this rank holds them."""

    def tensors_of(parameter: torch.Tensor) -> list[torch.Tensor]:
        tensors = [parameter, parameter.grad]
        if has_moments:
            state = optimizer.state[parameter]
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        parts = [local(tensor) for tensor in tensors if tensor is not None]
        return [sample_of(part) for part in parts] if is_sampled else parts

    return tensors_of


def _cut(
    parameters: Sequence[torch.Tensor],
    index_of: dict[torch.Tensor, int],
    tensors_of: Callable[[torch.Tensor], list[torch.Tensor]],
    cpu_elements: int = CPU_ELEMENTS,
) -> Iterator[ParamChunk]:
    """The parameters' flat tensors, cut and gathered to chunks of one size."""
    is_cpu = local(parameters[0]).device.type == "cpu"
    room = limit = cpu_elements if is_cpu else DEVICE_ELEMENTS
    chunk = ParamChunk()
    small: list[tuple[int, list[torch.Tensor]]] = []
    for parameter in parameters:
        parts = tensors_of(parameter)
        if parts[0].numel() <= SMALL_ELEMENTS and is_cpu:
            small.append((index_of[parameter], parts))
            continue
        flat = [part.reshape(-1) for part in parts]
        start = 0
        while start < flat[0].numel():
            stop = min(start + room, flat[0].numel())
            chunk.indices.append(index_of[parameter])
            for column, tensor in zip(chunk.columns, flat, strict=False):
                column.append(tensor[start:stop])
            room -= stop - start
            start = stop
            if room == 0:
                yield chunk
                chunk, room = ParamChunk(), limit
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
