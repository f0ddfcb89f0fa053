"""The largest attention logit of a layer, from its queries and keys.

While an attention module runs in a step that is measured, the functions that it may call (torch's
`scaled_dot_product_attention`, `softmax` and `flex_attention`, the attention functions of
transformers) are replaced by ones that measure and then call the original. In a compiled graph
nothing is replaced: a graph that saw the replacement would be compiled twice.

The matrix of logits is made in blocks; of very long sequences those queries are taken whose
products with mean and deviation of the keys let a large logit be expected. Where the module has
made the matrix itself, its maximum is read.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from trimtab.state.host_copy import local


class Limits(NamedTuple):
    """Logits of a layer, over all sequences and heads."""

    exact: int
    """Up to so many all are computed."""
    sampled: int
    """How many are computed of more."""
    block: int
    """How many are computed at a time: what a cache holds, or 64 MB."""


CPU_LIMITS = Limits(2**23, 2**20, 2**19)
DEVICE_LIMITS = Limits(2**30, 2**24, 2**24)
"""On a processor 4 sequences of 256 with 9 heads take 6 ms, 0.4 % of the step of a model of 10M
parameters, and 1 of 1,024 with 8 heads takes 25 ms; there sampling takes 22. On an accelerator 8
sequences of 2,048 with 32 heads are exact."""

MAX_SEQUENCES = 8
"""Sequences of a batch that are measured, at even distances."""

MIN_QUERIES = 16
"""Queries of a sequence that are measured at least, however long it is."""


@torch.no_grad()
def largest_logit(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    block_mask: Any = None,
    score_mod: Callable[..., torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return the largest scaled logit of queries and keys [..., heads, length, size] in fp32.

    There may be fewer heads of keys than of queries. What `mask`, `is_causal` or `block_mask`
    excludes does not count; -infinity if that is everything.
    """
    query, key = (local(tensor.detach()) for tensor in (query, key))
    query, key = ((t[None] if t.dim() == 3 else t).flatten(0, -4) for t in (query, key))
    if query.dtype in (torch.float16, torch.bfloat16):  # of fp16, the range would not do
        query, key = query.bfloat16(), key.bfloat16()
    device = query.device
    batch = torch.arange(0, len(query), math.ceil(len(query) / MAX_SEQUENCES), device=device)
    if len(batch) < len(query):
        query, key = query[batch], key[batch]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    num_keys, length = key.shape[-2], query.shape[-2]
    # [batch, heads of keys, heads of queries that share one, length, size]
    queries, keys = query.unflatten(1, (key.shape[1], -1)) * scale, key[:, :, None]
    heads = torch.arange(query.shape[1], device=device)[:, None, None]
    mask = None if mask is None else local(mask.detach())

    def largest(
        queries: torch.Tensor, rows: torch.Tensor, first: int, end: int | None
    ) -> torch.Tensor:
        """Of the keys those from `first` on may be excluded, and those from `end` on all are."""
        logits = (queries @ keys[..., :end, :].transpose(-2, -1)).flatten(1, 2)
        columns = torch.arange(first, logits.shape[-1], device=device)
        grid = (batch[:, None, None, None], heads, rows[..., None], columns)
        if score_mod is not None:
            logits = score_mod(logits, *grid)
        allowed = columns <= rows[..., None] if is_causal else None
        if mask is not None:
            part = _rows_of(mask, batch, rows)
            if part.dtype == torch.bool:
                allowed = part
            else:
                logits = logits + part
        if block_mask is not None:
            allowed = block_mask.mask_mod(*grid)
        if allowed is not None:  # by a sum: `masked_fill` takes seven times as long
            logits[..., first:] += torch.where(allowed, 0.0, -math.inf).to(logits.dtype)
        return logits.amax().float()

    limits = CPU_LIMITS if device.type == "cpu" else DEVICE_LIMITS
    of_query = query[..., 0, 0].numel() * num_keys
    has_autocast = torch.amp.is_autocast_available(device.type)
    with torch.autocast(device.type, enabled=False) if has_autocast else nullcontext():
        if of_query * length > limits.exact:
            count = min(max(limits.sampled // of_query, MIN_QUERIES), length)
            best = _choose_rows(queries, keys, count, is_causal=is_causal)
            chosen = queries.gather(3, best[..., None].expand(*best.shape, query.shape[-1]))
            return largest(chosen, best.flatten(1, 2), 0, None)
        found, size = [], max(limits.block // of_query, 1)
        for start in range(0, length, size):
            rows = torch.arange(start, min(start + size, length), device=device)[None, None]
            ends = (start, start + size) if is_causal else (0, None)
            found.append(largest(queries[..., start : start + size, :], rows, *ends))
        return torch.stack(found).amax()


def _choose_rows(
    queries: torch.Tensor, keys: torch.Tensor, count: int, *, is_causal: bool
) -> torch.Tensor:
    """Return the places of the queries [..., count] that are likely to have large logits.

    Of n normal numbers the largest is expected sqrt(2 log n) deviations above their mean. On random
    queries and keys of 15 shapes the maximum was exact in 13 and 2 % low in the worst.
    """
    mean = keys.mean(dim=-2, keepdim=True)
    centred = keys - mean
    covariance = centred.transpose(-2, -1) @ centred / keys.shape[-2]
    variance = torch.linalg.vecdot(queries @ covariance, queries).clamp(min=0.0)
    last = torch.arange(queries.shape[-2], device=keys.device)
    seen = last if is_causal else torch.full_like(last, keys.shape[-2])
    times = (2.0 * torch.log(seen + 1.5)).sqrt().to(variance.dtype)
    score = (queries @ mean.transpose(-2, -1)).squeeze(-1) + times * variance.sqrt()
    best: torch.Tensor = score.topk(count, dim=-1).indices
    return best


def _rows_of(mask: torch.Tensor, batch: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the part of a mask [..., length, keys] for some sequences and queries."""
    if mask.dim() == 4 and mask.shape[0] > len(batch):
        mask = mask[batch]
    if mask.shape[-2] == 1:  # the same for all queries
        return mask
    if rows.shape[0] * rows.shape[1] == 1:
        return mask[..., rows[0, 0], :]
    whole = mask.expand(*rows.shape[:2], *mask.shape[-2:])
    return whole.gather(2, rows[..., None].expand(-1, -1, -1, mask.shape[-1]))


class AttentionProbe:
    """The hooks of one attention module: `enter` before its forward pass, `leave` after it."""

    def __init__(
        self,
        acts: Callable[[], bool],
        write: Callable[[torch.Tensor], None],
        spend: Callable[[float], None],
    ) -> None:
        """Measure where `acts` says so; `spend` hears when each measurement began."""
        self._acts = acts
        self._write = write
        self._spend = spend
        self._restore: list[Callable[[], None]] = []
        self._thread = 0

    def enter(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or not self._acts() or self._restore:
            return
        self._thread = threading.get_ident()
        for owner, name, wrap in self._targets():
            self._replace(owner, name, wrap)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        while self._restore:
            self._restore.pop()()

    def _targets(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        yield F, "scaled_dot_product_attention", self._from_sdpa
        yield F, "softmax", self._from_softmax
        yield torch, "softmax", self._from_softmax
        yield torch.Tensor, "softmax", self._from_softmax
        flex = sys.modules.get("torch.nn.attention.flex_attention")
        if flex is not None:
            yield flex, "flex_attention", self._from_flex
        hub = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
        functions = getattr(hub, "_global_mapping", {})
        for name in list(functions):
            if name != "sdpa":  # it calls torch's
                yield functions, name, self._from_transformers

    def _replace(self, owner: Any, name: str, measure: Callable[..., None]) -> None:
        if isinstance(owner, dict):
            original = owner[name]
            self._restore.append(lambda: owner.__setitem__(name, original))
            owner[name] = self._around(original, measure)
            return
        original = getattr(owner, name)
        if name in vars(owner):
            self._restore.append(lambda: setattr(owner, name, original))
        else:  # inherited: a method of tensors
            self._restore.append(lambda: delattr(owner, name))
        setattr(owner, name, self._around(original, measure))

    def _around(self, original: Any, measure: Callable[..., None]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            is_here = threading.get_ident() == self._thread
            if is_here and self._acts() and not torch.compiler.is_compiling():
                # What cannot be measured is left out; the original says what is wrong with a call.
                began = time.perf_counter()
                with suppress(Exception):
                    measure(*args, **options)
                self._spend(began)
            return original(*args, **options)

        return call

    def _from_sdpa(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        self._write(largest_logit(query, key, attn_mask, is_causal=is_causal, scale=scale))

    def _from_softmax(self, scores: torch.Tensor, *args: Any, **options: Any) -> None:
        if scores.dim() >= 3 and scores.is_floating_point():
            self._write(local(scores.detach()).amax().float())

    def _from_flex(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Callable[..., torch.Tensor] | None = None,
        block_mask: Any = None,
        scale: float | None = None,
        *args: Any,
        **options: Any,
    ) -> None:
        self._write(
            largest_logit(query, key, scale=scale, block_mask=block_mask, score_mod=score_mod)
        )

    def _from_transformers(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **options: Any,
    ) -> None:
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        is_dense = isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 4
        has_blocks = hasattr(attention_mask, "mask_mod")
        logit = largest_logit(
            query,
            key,
            attention_mask if is_dense else None,
            is_causal=bool(causal) and not is_dense and not has_blocks,
            scale=scaling,
            block_mask=attention_mask if has_blocks else None,
        )
        self._write(logit)
