"""Trace: what a forward pass does, seen at the calls of torch functions and modules.

A `TorchFunctionMode` sees losses and embeddings in models of any author; hooks for all modules of
the process see blocks. No hook is put on a module of the user.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from trimtab.live.measure.activations import first_tensor
from trimtab.live.measure.sites import find_blocks
from trimtab.state.host_copy import local

_LOSSES = {F.cross_entropy, F.nll_loss}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCall:
    """A call of cross_entropy or nll_loss."""

    logits: torch.Tensor
    targets: torch.Tensor
    ignore_index: int

    @property
    def num_classes(self) -> int:
        """The size of the vocabulary, or the number of classes."""
        return int(self.logits.shape[1] if self.logits.dim() > 1 else self.logits.shape[0])

    @property
    def num_targets(self) -> int:
        """Number of targets that are not ignored."""
        if self.targets.is_floating_point():
            return self.targets.shape[0]
        return int((self.targets != self.ignore_index).sum())


class Trace(TorchFunctionMode):
    """Records one forward pass; use it as a context manager."""

    def __init__(self, model: nn.Module, *, keeps_outputs: bool = False) -> None:
        super().__init__()
        blocks = find_blocks(model) if keeps_outputs else []
        self._blocks = {module: name for name, module in blocks}
        self._model = model
        self.output: Any = None
        """What the model returned."""
        self.losses: list[LossCall] = []
        self.outputs: dict[str, torch.Tensor] = {}
        """What blocks put out in fp32, if that was asked for."""
        self.tokens: list[torch.Tensor] = []
        """What embeddings were asked for."""

    def __enter__(self) -> "Trace":
        self._hook = register_module_forward_hook(self._after)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hook.remove()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        with torch.no_grad():  # statistics must not become part of the user's graph
            self._record(func, args, kwargs)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any) -> None:
        if func in _LOSSES:
            names = ("input", "target", "weight", "size_average", "ignore_index")
            given = dict(zip(names, args, strict=False)) | kwargs
            logits, ignored = given["input"].detach(), given.get("ignore_index")
            index = -100 if ignored is None else ignored  # torch's default
            call = LossCall(logits=logits, targets=given["target"].detach(), ignore_index=index)
            self.losses.append(call)
        elif func is F.embedding:
            self.tokens.append((args[0] if args else kwargs["input"]).detach())

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module is self._model:
            self.output = output
        name = self._blocks.get(module)
        tensor = first_tensor(output) if name is not None else None
        if name is not None and tensor is not None:
            self.outputs[name] = tensor.detach().float().clone()


def is_norm(module: nn.Module) -> bool:
    """Return whether a module normalises its input, by its kind or its name."""
    if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.modules.batchnorm._BatchNorm):
        return True
    weight = getattr(module, "weight", None)
    is_named = "norm" in type(module).__name__.lower()
    return is_named and (weight is None or weight.dim() == 1) and not list(module.children())


def rms(tensor: torch.Tensor) -> float:
    """Return the root mean square, computed in fp32."""
    part = local(tensor.detach()).float()
    return float(part.square().mean().sqrt()) if part.numel() else 0.0
