"""Activations: the size of each block's output, written into a buffer by forward hooks.

Hooks act only in steps whose telemetry is measured, in training, outside of function transforms. In
a compiled graph they always act, because a flag would have the graph compiled twice. A hook holds
nothing but the buffer, and a copy of a model gets no hook that does anything.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.core import signals
from trimtab.live.measure.roles import plain_name
from trimtab.live.ranks.shards import norm_dtype
from trimtab.state.host_copy import local

NOT_WRITTEN = -1.0
"""What a slot holds until its hook has fired; a root mean square is never negative."""


class Activations:
    """Hooks on the blocks of a model, and the buffer that they write into."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._blocks = find_blocks(model)
        names = [plain_name(f"{name}.").removesuffix(".") for name, _ in self._blocks]
        self.slots = (*(f"block:{n}" for n in names), *(f"written:{n}" for n in names))
        """The names of what `measure` returns on this rank."""
        self._buffer = _Buffer(len(names), device)
        self._handles: list[RemovableHandle] = []

    def arm(self) -> None:
        """Hook the blocks for the next step."""
        self._buffer.is_armed = True
        if not self._handles:
            self._handles = [
                module.register_forward_hook(_Writer(self._buffer, place))
                for place, (_, module) in enumerate(self._blocks)
            ]

    def measure(self) -> torch.Tensor:
        """What the blocks have put out, and which of them have; raises what a hook has raised."""
        if self._buffer.error is not None:
            raise self._buffer.error
        values = self._buffer.values
        is_written = values != NOT_WRITTEN
        found = torch.cat((torch.where(is_written, values, 0.0), is_written.float()))
        values.fill_(NOT_WRITTEN)
        return found

    def disarm(self) -> None:
        """Take the hooks off: between measured steps a forward pass runs as without trimtab."""
        self._buffer.is_armed = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def read_activations(sums: Mapping[str, float]) -> dict[str, float]:
    """The mean over the ranks that ran a block."""
    found = {}
    for slot, value in sums.items():
        if slot.startswith("block:"):
            name = slot.removeprefix("block:")
            written = sums[f"written:{name}"]
            if written > 0:
                found[f"{signals.ACTIVATION_RMS}{name}"] = value / written
    return found


def silent_blocks(sums: Mapping[str, float]) -> list[str]:
    """The blocks whose hook has not fired on any rank."""
    return [
        slot.removeprefix("written:")
        for slot, written in sums.items()
        if slot.startswith("written:") and not written
    ]


class _Buffer:
    """What hooks share; it knows nothing of the guard."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.values = torch.full((size,), NOT_WRITTEN, dtype=torch.float32, device=device)
        self.is_armed = False
        self.error: Exception | None = None


class _Writer:
    """The hook of one block."""

    def __init__(self, buffer: _Buffer, place: int) -> None:
        self._buffer = buffer
        self._slot = buffer.values[place]

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and not self._acts():
            return
        # Not a context manager made from a generator: that breaks a compiled graph.
        try:
            self._write(output)
        except Exception as error:  # it would end the user's forward pass
            self._buffer.error = error
            self._buffer.is_armed = False

    def _acts(self) -> bool:
        return (
            self._buffer.is_armed
            and torch.is_grad_enabled()
            and torch._C._functorch.maybe_current_level() is None
        )

    def _write(self, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            part = local(tensor.detach())
            norm = torch.linalg.vector_norm(part, dtype=norm_dtype(part))
            self._slot.copy_(norm / math.sqrt(max(part.numel(), 1)))

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or pickled model gets a callable of the standard library that does nothing.
        return getattr, (contextlib.nullcontext(), "__exit__")


def first_tensor(output: Any) -> torch.Tensor | None:
    """The floating-point tensor that a block returns, alone or first in a tuple, list or dict."""
    if isinstance(output, Mapping):
        output = next(iter(output.values()), None)
    elif isinstance(output, (tuple, list)):  # torch 2.6 cannot compile `tuple | list`
        output = output[0] if output else None
    is_usable = isinstance(output, torch.Tensor) and output.is_floating_point()
    return output if is_usable else None


def find_blocks(model: nn.Module) -> Sequence[tuple[str, nn.Module]]:
    """The model's repeated blocks with their names: its longest list of modules of one kind.

    Of two lists the one that is not inside a block of the other is meant: layers, not experts.
    """
    best: Sequence[tuple[str, nn.Module]] = ()
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            children = list(module.named_children())
            kinds = {_kind(child) for _, child in children}
            is_inside = any(name.startswith(f"{block}.") for block, _ in best)
            if len(kinds) == 1 and len(children) > max(len(best), 1) and not is_inside:
                best = [(f"{name}.{place}".lstrip("."), child) for place, child in children]
    return best


def _kind(module: nn.Module) -> type:
    # A block compiled or checkpointed on its own is wrapped; what counts is what is inside.
    inner = getattr(module, "_orig_mod", None) or getattr(
        module, "_checkpoint_wrapped_module", None
    )
    return type(inner) if isinstance(inner, nn.Module) else type(module)
