"""Attention calls of a forward pass: how spread out the heads look, and how large logits are."""

import math
from dataclasses import dataclass
from typing import Any

import torch

MAX_QUERIES = 64
"""Queries of the first sequence that are looked at, evenly spaced."""

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
    """Queries that may look at nothing."""


def of_sdpa(where: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionStats:
    """The statistics of a call of `scaled_dot_product_attention`."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key = (given[name].detach()[:1].float() for name in ("query", "key"))
    if query.dim() == 4 and key.shape[1] != query.shape[1]:
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
    """The statistics of (..., queries, keys) logits of attention."""
    logits = logits.detach()[:1].float()
    allowed = logits > MASKED
    counts = allowed.sum(-1)
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
