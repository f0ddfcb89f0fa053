"""Trace: what a forward pass does, seen at the calls of torch functions and modules.

A `TorchFunctionMode` sees losses, softmaxes, attention and embeddings in models of any author;
hooks for all modules of the process see norms and blocks. No hook is put on a module of the user.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from trimtab.live.measure.activations import first_tensor
from trimtab.live.measure.sites import find_blocks
from trimtab.state.host_copy import local

MAX_QUERIES = 64
"""Queries of the first sequence whose logits are inspected, evenly spaced."""

MASKED = -1e4
"""Logits below this are masks: finite ones in use are -65504, -1e9 and the smallest of a dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStats:
    """One attention call, of the first sequence of the batch."""

    where: str
    lowest_entropy: float
    """Entropy of the most focused head, divided by that of an even look; NaN if unknown."""
    largest_logit: float
    num_masked_rows: int
    """Queries for which every key is masked."""


def of_sdpa(where: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionStats:
    """Return the statistics of a call of `scaled_dot_product_attention`."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key = (given[name].detach()[:1].float() for name in ("query", "key"))
    if query.dim() == 4 and key.shape[1] != query.shape[1]:  # grouped-query attention
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = given.get("scale") or 1.0 / math.sqrt(query.shape[-1])
    length, width = query.shape[-2], key.shape[-2]
    picked = torch.linspace(0, length - 1, min(length, MAX_QUERIES), device=query.device).long()
    logits = query[..., picked, :] @ key.transpose(-1, -2) * scale
    if given.get("is_causal"):
        places = torch.arange(width, device=query.device)
        logits = logits.masked_fill(places > picked[:, None], -math.inf)
    mask = given.get("attn_mask")
    if mask is not None:
        mask = mask.detach()[:1] if mask.dim() == query.dim() else mask.detach()
        if mask.shape[-2] > 1:
            mask = mask[..., picked, :]
        if mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask, -math.inf)
        else:
            logits = logits + mask
    return of_logits(where, logits)


def of_logits(where: str, logits: torch.Tensor) -> AttentionStats:
    """Return the statistics of (..., queries, keys) logits of attention."""
    logits = logits.detach()[:1].float()
    allowed = logits > MASKED
    counts = allowed.sum(-1)
    # Finite in the place of -inf: a row that is masked completely must not make NaN here.
    safe = torch.where(allowed, logits, torch.full_like(logits, -1e30))
    log_chance = safe.log_softmax(-1)
    entropy = -(log_chance.exp() * log_chance).where(allowed, logits.new_zeros(())).sum(-1)
    several = counts > 1
    share = (entropy / counts.clamp(min=2).float().log()).where(several, logits.new_zeros(()))
    heads = share.flatten(0, -2).sum(-1) / several.flatten(0, -2).sum(-1)
    known = heads[torch.isfinite(heads)]
    largest = logits.where(allowed, logits.new_zeros(())).abs().amax()
    return AttentionStats(
        where=where,
        lowest_entropy=float(known.min()) if len(known) else math.nan,
        largest_logit=float(largest),
        num_masked_rows=int((counts == 0).sum()),
    )


LOW = (torch.bfloat16, torch.float16)

_LOSSES = {F.cross_entropy, F.nll_loss}
_SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax}
_LOG_SOFTMAXES = {F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax}
_RECTIFIERS = {F.relu, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NormInput:
    """The input of a norm."""

    where: str
    lowest: float
    """Smallest variance (mean square for an RMSNorm) over the rows, divided by the norm's eps."""
    highest: float
    """The same for the largest."""
    share: float
    """Share of the rows whose variance is below eps."""


class Trace(TorchFunctionMode):
    """Records one forward pass; use it as a context manager."""

    def __init__(self, model: nn.Module, *, keeps_outputs: bool = False) -> None:
        super().__init__()
        self._keeps_outputs = keeps_outputs
        self._names = {module: name for name, module in model.named_modules()}
        self._blocks = {module: name for name, module in find_blocks(model)}
        self._open: list[str] = []
        self._hooks: list[Any] = []
        self._model = model
        self.output: Any = None
        """What the model returned."""
        self.losses: list[LossCall] = []
        self.num_softmaxes = 0
        self.low_softmaxes: list[str] = []
        """Softmaxes whose input and output are in low precision: kind and module."""
        self.attentions: list[AttentionStats] = []
        self.norms: list[NormInput] = []
        self.block_rms: dict[str, float] = {}
        self.outputs: dict[str, torch.Tensor] = {}
        """What blocks put out in fp32, if that was asked for."""
        self.dead: dict[str, float] = {}
        """Share of the units of a rectifier that are 0 for every row, by module."""
        self.tokens: list[torch.Tensor] = []
        """What embeddings were asked for."""

    def __enter__(self) -> "Trace":
        self._hooks = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

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
            self._record(func, args, kwargs, result)
        return result

    @property
    def where(self) -> str:
        """The module that runs now."""
        return self._open[-1] if self._open else "the loss"

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if func in _LOSSES:
            names = ("input", "target", "weight", "size_average", "ignore_index")
            given = dict(zip(names, args, strict=False)) | kwargs
            logits, ignored = given["input"].detach(), given.get("ignore_index")
            index = -100 if ignored is None else ignored  # torch's default
            call = LossCall(logits=logits, targets=given["target"].detach(), ignore_index=index)
            self.losses.append(call)
            if func is F.cross_entropy:
                self._softmax("cross_entropy", logits, result)
        elif func in _SOFTMAXES or func in _LOG_SOFTMAXES:
            logits = args[0] if args else kwargs["input"]
            kind = "softmax" if func in _SOFTMAXES else "log_softmax"
            self._softmax(kind, logits, result)
            # (batch, head, query, key), or (batch * head, query, key) of one length.
            is_square = logits.dim() == 3 and logits.shape[-1] == logits.shape[-2] > 1
            if kind == "softmax" and (logits.dim() == 4 or is_square):
                self.attentions.append(of_logits(self.where, logits))
        elif func is F.scaled_dot_product_attention:
            self.attentions.append(of_sdpa(self.where, args, kwargs))
        elif func is F.embedding:
            self.tokens.append((args[0] if args else kwargs["input"]).detach())
        elif func in _RECTIFIERS and result.dim() > 1:
            alive = (result != 0).flatten(0, -2).any(0)
            self.dead[self.where] = 1.0 - float(alive.float().mean())

    def _softmax(self, kind: str, logits: torch.Tensor, result: torch.Tensor) -> None:
        self.num_softmaxes += 1
        if logits.dtype in LOW and result.dtype in LOW:
            dtype = str(logits.dtype).removeprefix("torch.")
            self.low_softmaxes.append(f"{kind} in {self.where} ({dtype})")

    def _before(self, module: nn.Module, inputs: Any) -> None:
        self._open.append(self._names.get(module, type(module).__name__) or "the model")
        if is_norm(module) and inputs and isinstance(inputs[0], torch.Tensor):
            with torch.no_grad():
                self._record_norm(module, inputs[0].detach())

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._open.pop()
        if module is self._model:
            self.output = output
        name = self._blocks.get(module)
        tensor = first_tensor(output) if name is not None else None
        if name is not None and tensor is not None:
            with torch.no_grad():
                self.block_rms[name] = rms(tensor)
                if self._keeps_outputs:
                    self.outputs[name] = tensor.detach().float().clone()

    def _record_norm(self, module: nn.Module, values: torch.Tensor) -> None:
        values = values.float()
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if not module.training:  # it divides by running statistics, not by those of the batch
                return
            size = values.transpose(0, 1).flatten(1).var(1, correction=0)
        elif isinstance(module, nn.GroupNorm):
            size = values.unflatten(1, (module.num_groups, -1)).flatten(2).var(2, correction=0)
        elif "rms" in type(module).__name__.lower() or isinstance(module, nn.RMSNorm):
            size = values.square().mean(-1)
        else:
            size = values.var(-1, correction=0)
        eps = next(
            (e for n in ("eps", "variance_epsilon") if (e := getattr(module, n, None))), 1e-6
        )
        self.norms.append(
            NormInput(
                where=self.where,
                lowest=float(size.min()) / eps,
                highest=float(size.max()) / eps,
                share=float((size < eps).float().mean()),
            )
        )


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
