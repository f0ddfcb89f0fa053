"""StateSums: squares of weights, gradients, Adam's moments and the update, by role and layer.

Parameters are cut into chunks that are quick to work on, once for each set of parameters that has
gradients and moments (`Layout`). A pass looks the tensors of a chunk up when it comes to it, so it
may take several steps and keeps no gradient alive in between.

The update is worked out from the state after the step instead of copying the parameters before it:
a copy would need memory that a large run does not have. It is

    lr * k * (m / s + decay / k * p),   s = sqrt(v) + eps * r,   k = r / (1 - beta1^t),
                                        r = sqrt(1 - beta2^t)

and what is the same for all elements (lr and k) is applied to the norm, not to them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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

BY_ROLE = ("param", "grad", "m", "v", "update")
"""Squares of weights, gradient, both moments and the last update."""

BY_LAYER = ("param", "grad", "update")
"""What of BY_ROLE is also added up by layer."""

STATE_ROWS = ("param", "m", "v", "update")
"""What of BY_ROLE is summed chunk by chunk; gradients are summed when a pass begins."""

RARE_SQUARES = ("adam_grads", "grad_to_v")
"""Squares of the gradient where there are moments to compare it with; sums of g^2/v."""

RARE_SUMS = ("zeros", "grad_dot_m")
"""Elements of the gradient that are exactly zero; its product with the first moment."""

RARE = (*RARE_SQUARES, *RARE_SUMS)
"""What is summed in some passes only."""

UNKNOWN = -1e30
"""Stands for the square of an update that is not known, of pieces with a gradient and no moments
that can be read: no sum with such a piece in it is positive."""

MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


class StateChanged(Exception):
    """A gradient or moment that was there when a pass began is gone."""


class Trait(NamedTuple):
    """What a parameter has, as far as it decides how it is summed."""

    number: int
    """The index of the parameter."""
    parameter: torch.Tensor
    optimizer: Optimizer
    group: int
    """The number of its group: a load of the optimizer's state replaces groups."""
    numel: int
    has_grad: bool
    has_moments: bool


def traits(
    optimizers: Sequence[Optimizer], index_of: dict[torch.Tensor, int], device: torch.device
) -> Iterator[Trait]:
    """Yield every known parameter of real numbers on the device.

    What has no gradient in this step counts with its weights and moments: layers that are dropped
    and experts without a token would otherwise look like state that was lost.
    """
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                index, held = index_of.get(parameter), local(parameter)
                if index is not None and held.device == device and not held.is_complex():
                    grad, state = parameter.grad, optimizer.state.get(parameter, {})
                    has_grad = grad is not None and not grad.is_sparse
                    has_moments = _has_moments(state, group, parameter)
                    size = held.numel()
                    yield Trait(index, parameter, optimizer, number, size, has_grad, has_moments)


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
        and all(_is_moment(state[name], parameter) for name in MOMENTS.values())
    )


def _is_moment(moment: Any, parameter: torch.Tensor) -> bool:
    # By exact type: a quantized moment is a tensor subclass that computes in ways of its own.
    return type(moment) in (torch.Tensor, type(parameter), type(parameter.data)) and (
        moment.shape == parameter.shape and moment.dtype == parameter.dtype
    )


@dataclass(slots=True)
class Chunk:
    """Parameters that one optimizer treats alike and that are summed together, or a piece of one
    that is larger than a chunk."""

    first: Trait
    """Stands for all of them: the optimizer, its group, gradients and moments."""
    traits: list[Trait] = field(default_factory=list)
    piece: int | None = None
    """The number of the piece, if it is one."""


def _cut(found: Sequence[Trait], limit: int) -> Iterator[Chunk]:
    """Yield chunks of at most so many elements: pieces of large parameters, then the others."""
    chunks: dict[Any, tuple[Chunk, int]] = {}
    full = []
    for trait in found:
        # Pieces of what is not contiguous would be copied.
        if trait.numel > limit and local(trait.parameter).is_contiguous():
            for number in range(math.ceil(trait.numel / limit)):
                yield Chunk(trait, [trait], number)
            continue
        key = (id(trait.optimizer), trait.group, trait.has_grad, trait.has_moments)
        chunk, size = chunks.get(key, (Chunk(trait), 0))
        if size and size + trait.numel > limit:
            full.append(chunk)
            chunk, size = Chunk(trait), 0
        chunk.traits.append(trait)
        chunks[key] = (chunk, size + trait.numel)
    yield from (*full, *(chunk for chunk, _ in chunks.values()))


class Layout:
    """Chunks of a set of parameters, and where their sums go in the vector of all sums."""

    def __init__(
        self,
        found: Sequence[Trait],
        copies: Sequence[float],
        roles: Roles,
        slots: Sequence[str],
        device: torch.device,
    ) -> None:
        """Cut parameters; `copies` ranks hold the same part of each, which counts once."""
        self.limit = CPU_ELEMENTS if device.type == "cpu" else DEVICE_ELEMENTS
        self.chunks = list(_cut(found, self.limit))
        self.with_grads = [trait for trait in found if trait.has_grad]
        place_of = {slot: place for place, slot in enumerate(slots)}
        none = len(slots)  # one more than there are, for what is in no layer

        def places(names: Sequence[str], pieces: Sequence[Trait]) -> list[int]:
            by_role = [
                place_of[f"{what}:{roles.names[roles.index[trait.number]]}"]
                for what in names
                for trait in pieces
            ]
            layers = (*roles.layers, "")
            return by_role + [
                place_of.get(f"{what}_layer:{layers[roles.layer_index[trait.number]]}", none)
                for what in names
                if what in BY_LAYER
                for trait in pieces
            ]

        pieces = [trait for chunk in self.chunks for trait in chunk.traits]
        rare = [place_of[what] for what in RARE for _ in pieces]
        self.places = on_device(places(STATE_ROWS, pieces) + rare, device)
        self.grad_places = on_device(places(("grad",), self.with_grads), device)
        self.weights = on_device([1.0 / copies[trait.number] for trait in pieces], device)
        weights = [1.0 / copies[trait.number] for trait in self.with_grads]
        self.grad_weights = on_device(weights, device)
        self.constants = on_device([0.0, 1.0, UNKNOWN], device).unbind()


def on_device(numbers: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return numbers as a tensor; the host does not wait for the device, as it would otherwise."""
    dtype = torch.int64 if all(type(number) is int for number in numbers) else torch.float32
    return torch.tensor(numbers, dtype=dtype, device="cpu").to(device, non_blocking=True)


ChunkSums = tuple[Chunk, dict[str, Tensors]]


class StateSums:
    """One pass over the state: gradients when it begins, the rest chunk by chunk."""

    def __init__(self, layout: Layout, size: int, device: torch.device, *, is_whole: bool) -> None:
        """Sum up the gradients; `size` is that of the vector, `is_whole` with the sums of RARE."""
        self._layout = layout
        self._is_whole = is_whole
        self._sums = torch.zeros(size + 1, dtype=torch.float32, device=device)
        self._none, self._one, self._unknown = layout.constants
        self._device = device
        self._num_done = 0
        self._pieces: dict[tuple[int, str], tuple[torch.Tensor, ...]] = {}
        """Those of the present parameter; nothing from one step to the next."""
        self._found: list[ChunkSums] = []
        self._adam: dict[tuple[int, int], _Adam] = {}
        if layout.with_grads:
            grads = [trait.parameter.grad for trait in layout.with_grads]
            found = squares([local(grad) for grad in grads if grad is not None])
            found = found * layout.grad_weights
            self._sums.index_add_(0, layout.grad_places, torch.cat((found, found)))

    def advance(self, share: float) -> None:
        """Go on to this share of the chunks."""
        chunks = self._layout.chunks
        last = round(share * len(chunks))
        for chunk in chunks[self._num_done : last]:
            self._found.append((chunk, self._sum(chunk)))
        self._num_done = max(self._num_done, last)
        self._pieces.clear()

    def _tensors(self, chunk: Chunk, name: str) -> list[torch.Tensor]:
        """Return weights ("param"), "grad", "m" or "v" of a chunk."""
        if chunk.piece is None:
            return self._wide([_look_up(trait, name) for trait in chunk.traits])
        key = (chunk.first.number, name)
        if key not in self._pieces:
            flat = _look_up(chunk.first, name).reshape(-1)
            self._pieces[key] = flat.split(self._layout.limit)
        return self._wide([self._pieces[key][chunk.piece]])

    def _wide(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        # On a processor, where it costs little; on a device it would cost memory.
        return [_wide(one) for one in tensors] if self._device.type == "cpu" else tensors

    def finish(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the vector of all sums, and the updates that Adam has counted: the largest, since
        a group may join later or be left out of a step."""
        if self._found:
            weights, places = self._layout.weights, self._layout.places
            state = self._squares(STATE_ROWS)
            scales = [self._scale(chunk.first) for chunk, _ in self._found for _ in chunk.traits]
            state[-1] *= torch.stack(scales)
            state = (state * weights).float()
            parts = [state.flatten(), state[0], state[-1]]
            if self._is_whole:
                rare = torch.cat((self._squares(RARE_SQUARES), self._rows(RARE_SUMS, self._found)))
                parts.append((rare * weights).float().flatten())
            flat = torch.cat(parts)
            self._sums.index_add_(0, places[: len(flat)], flat)
        steps = [adam.step for adam in self._adam.values()]
        return self._sums[:-1], torch.stack(steps).amax() if steps else None

    def _squares(self, names: Sequence[str]) -> torch.Tensor:
        """Return rows of squares: pieces have them already, and come first."""
        pieces = [one for one in self._found if one[0].piece is not None]
        others = self._found[len(pieces) :]
        rows = [self._rows(names, pieces)] if pieces else []
        rows += [self._rows(names, others).square()] if others else []
        return torch.cat(rows, dim=1)

    def _rows(self, names: Sequence[str], found: Sequence[ChunkSums]) -> torch.Tensor:
        """Return a row for each name, with a number for each parameter; zero where it has none."""
        numbers = [
            number
            for name in names
            for chunk, sums in found
            for number in sums.get(name, [self._none] * len(chunk.traits))
        ]
        return torch.stack(numbers).view(len(names), -1)

    def _scale(self, trait: Trait) -> torch.Tensor:
        """Return what the square of an update's norm is multiplied by."""
        if trait.has_moments and trait.has_grad:
            return self._adam_of(trait).scale
        return self._unknown if trait.has_grad else self._none

    def _sum(self, chunk: Chunk) -> dict[str, Tensors]:
        """Return sums of a chunk by name: squares of a piece, but norms of whole parameters."""
        first, found = chunk.first, dict[str, Tensors]()
        sizes = norms if chunk.piece is None else _squares
        grads = self._tensors(chunk, "grad") if first.has_grad and self._is_whole else []
        if grads:
            found["zeros"] = [one.numel() - torch.count_nonzero(one) for one in grads]
        update: Tensors = []
        if first.has_moments:
            # Each tensor is summed where it is used, while the cache has it.
            adam, m, v = self._adam_of(first), *(self._tensors(chunk, name) for name in MOMENTS)
            found["v"] = sizes(v)
            if first.has_grad:
                scale = torch._foreach_sqrt(v)
                # One for each: a single one is read by the host.
                torch._foreach_add_(scale, [adam.epsilon] * len(scale))
                if grads:
                    ratios = sizes(torch._foreach_div(grads, scale))
                    power = adam.root if chunk.piece is None else adam.second
                    found["grad_to_v"] = torch._foreach_mul(ratios, [power] * len(ratios))
                    found["adam_grads"] = sizes(grads)
                    # In fp32: the cosine of two parallel bf16 vectors is over 1 otherwise.
                    flat = [[_wide(one.reshape(-1)) for one in ones] for ones in (grads, m)]
                    found["grad_dot_m"] = list(map(torch.dot, *flat))
                update = torch._foreach_div(m, scale)
            found["m"] = sizes(m)
        weights = self._tensors(chunk, "param")
        if update:
            if adam.decay is not None:
                torch._foreach_addcmul_(update, weights, [adam.decay] * len(update))
            found["update"] = sizes(update)
        elif first.has_grad:
            found["update"] = [self._one] * len(weights)  # times UNKNOWN
        found["param"] = sizes(weights)
        return found

    def _adam_of(self, trait: Trait) -> "_Adam":
        key = (id(trait.optimizer), trait.group)
        if key not in self._adam:
            self._adam[key] = _Adam.read(trait, self._device)
        return self._adam[key]


@dataclass(frozen=True, slots=True)
class _Adam:
    """What is the same for all elements of a group; on the device, where `step` may be."""

    step: torch.Tensor
    epsilon: torch.Tensor
    second: torch.Tensor
    """1 - beta2^t."""
    root: torch.Tensor
    """The root of it."""
    decay: torch.Tensor | None
    """The weight of the parameters in the update before it is scaled; None if there is none."""
    scale: torch.Tensor
    """The square of lr * k."""

    @classmethod
    def read(cls, trait: Trait, device: torch.device) -> "_Adam":
        group = trait.optimizer.param_groups[trait.group]
        state = trait.optimizer.state[trait.parameter]
        step = _step_of(state["step"], device)
        beta1, beta2 = group["betas"]
        second = 1.0 - beta2**step
        root = second.sqrt()
        k = root / (1.0 - beta1**step)
        is_adamw = isinstance(trait.optimizer, torch.optim.AdamW)
        is_decoupled = group.get("decoupled_weight_decay", is_adamw)
        decay = group["weight_decay"] / k if is_decoupled and group["weight_decay"] else None
        return cls(step, group["eps"] * root, second, root, decay, (k * group["lr"]).square())


def _step_of(step: torch.Tensor | float, device: torch.device) -> torch.Tensor:
    if isinstance(step, torch.Tensor):
        return local(step).to(device, torch.float32, non_blocking=True).reshape(())
    return torch.full((), float(step), dtype=torch.float32, device=device)


def norms(tensors: Tensors) -> Tensors:
    """Return each tensor's norm, in fp32 at least."""
    return torch._foreach_norm(tensors, 2.0, dtype=norm_dtype(*tensors))


def squares(tensors: Tensors) -> torch.Tensor:
    """Return the square of each tensor's norm, in fp32 whatever the tensors are."""
    return torch.stack(norms([real(tensor) for tensor in tensors])).square().float()


def _squares(pieces: Tensors) -> Tensors:
    if pieces[0].device.type == "cpu":
        return [piece.dot(piece) for piece in pieces]  # in the cache, in a third of the time
    found = norms(pieces)
    return torch._foreach_mul(found, found)


def _look_up(trait: Trait, name: str) -> torch.Tensor:
    """Return weights ("param"), "grad", "m" or "v" of a parameter, on this rank."""
    parameter = trait.parameter
    found = parameter if name == "param" else parameter.grad
    if name in MOMENTS:
        found = trait.optimizer.state.get(parameter, {}).get(MOMENTS[name])
    if found is None:
        raise StateChanged
    return local(found)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
