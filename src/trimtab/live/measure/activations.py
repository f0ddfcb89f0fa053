"""Activations: the size of each block's output, written into a buffer by forward hooks.

The buffer is made once and the hook only copies into it, so the same hook works in eager mode, in a
compiled graph without a break, and under activation checkpointing (where it writes twice).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.live.measure.roles import plain_name
from trimtab.live.ranks.shards import local, norm_dtype
from trimtab.live.shield import Shield

NOT_WRITTEN = -1.0
"""What a slot holds until its hook has fired; a root mean square is never negative."""


class Activations:
    """Hooks on the blocks of a model, and the buffer that they write into."""

    def __init__(self, model: nn.Module, device: torch.device, shield: Shield) -> None:
        blocks = find_blocks(model)
        self.names = tuple(plain_name(f"{name}.").removesuffix(".") for name, _ in blocks)
        self.buffer = torch.full((len(blocks),), NOT_WRITTEN, device=device)
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(_Writer(self.buffer, place, shield))
            for place, (_, module) in enumerate(blocks)
        ]

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Writer:
    """The hook of one block."""

    def __init__(self, buffer: torch.Tensor, place: int, shield: Shield) -> None:
        self._slot = buffer[place]
        self._shield = shield

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._shield.is_down:
            return
        # Not `guarding`: a context manager made from a generator breaks a compiled graph.
        try:
            self._write(output)
        except Exception as error:  # it would end the user's forward pass
            self._shield.catch("activations", error)

    def _write(self, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            part = local(tensor.detach())
            norm = torch.linalg.vector_norm(part, dtype=norm_dtype(part))
            self._slot.copy_(norm / math.sqrt(max(part.numel(), 1)))


def find_blocks(model: nn.Module) -> Sequence[tuple[str, nn.Module]]:
    """The model's repeated blocks with their names: its longest list of modules of one kind."""
    best: Sequence[tuple[str, nn.Module]] = ()
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            children = list(module.named_children())
            kinds = {_kind(child) for _, child in children}
            if len(kinds) == 1 and len(children) > max(len(best), 1):
                best = [(f"{name}.{place}", child) for place, child in children]
    return best


def _kind(module: nn.Module) -> type:
    # A block compiled or checkpointed on its own is wrapped; what counts is what is inside.
    inner = getattr(module, "_orig_mod", None) or getattr(
        module, "_checkpoint_wrapped_module", None
    )
    return type(inner) if isinstance(inner, nn.Module) else type(module)
