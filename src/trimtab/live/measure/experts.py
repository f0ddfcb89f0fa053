"""What a router does with its experts, from its logits or the experts that it chose.

expert_max_share   the share of tokens that the busiest expert gets, averaged over records
dead_experts       the share of experts that get next to nothing, by the same average
router_entropy     mean entropy of the router's choice, divided by that of an even one
router_z           mean square of log Z of the router, which a z-loss keeps small
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trimtab.core import signals
from trimtab.state.host_copy import local

EXPERT_SIGNALS = (
    signals.EXPERT_MAX_SHARE,
    signals.DEAD_EXPERTS,
    signals.ROUTER_ENTROPY,
    signals.ROUTER_Z,
)

MEMORY = 0.75
"""What of the average stays from one measurement to the next: an expert that got its fair share
counts as dead 14 measurements after it got its last token."""

DEAD_SHARE = 0.02
"""An expert with less than this part of its fair share is dead."""

MIN_TOKENS = 16
"""Tokens that an expert would get in a fair share: with 16 expected, none is a chance of 1e-7."""


class ExpertLoad:
    """Measures one router; it remembers how many tokens each expert got."""

    def __init__(self, router: nn.Module, parent: nn.Module, device: torch.device) -> None:
        self._top_k = next((k for m in (router, parent) if (k := _top_k(m))), 1)
        experts = getattr(parent, "experts", None)
        self._size = (
            len(experts)
            if isinstance(experts, nn.ModuleList)
            else next((n for m in (router, experts, parent) if (n := _num_experts(m))), 0)
        )
        self._device = device
        self._average: torch.Tensor | None = None

    @torch.no_grad()
    def measure(self, output: Any) -> list[torch.Tensor | None] | None:
        """Return the numbers of EXPERT_SIGNALS, None for those that are not known, or for all."""
        parts = output if isinstance(output, (tuple, list)) else (output,)
        tensors = [local(part.detach()) for part in parts if isinstance(part, torch.Tensor)]
        is_chosen = next((t for t in tensors if t.dtype == torch.bool), None)
        # Beside a map of what was chosen, as Megatron's, there are probabilities and no logits.
        logits = self._find_logits(tensors) if is_chosen is None else None
        chosen = next((t for t in tensors if t.dtype in (torch.int64, torch.int32)), None)
        if logits is not None and self._size == 0:
            self._size = logits.shape[-1]
        if self._top_k >= self._size:  # every token goes to every expert
            return None
        if is_chosen is not None and is_chosen.shape[-1] == self._size:
            counts = is_chosen.reshape(-1, self._size).float().sum(dim=0)
            tokens = is_chosen.numel() // self._size
        else:
            if chosen is None or chosen.shape[-1] != self._top_k:
                if logits is None:
                    return None
                chosen = logits.topk(self._top_k, dim=-1).indices
            tokens = chosen.numel() // self._top_k
            flat = chosen.reshape(-1).long()
            ones = torch.ones(len(flat), dtype=torch.float32, device=flat.device)
            counts = torch.zeros(self._size, device=flat.device).index_add_(0, flat, ones)
        load = self._remember(counts / max(tokens, 1))
        fair = self._top_k / self._size
        is_enough = tokens * fair >= MIN_TOKENS
        dead = (load < DEAD_SHARE * fair).float().mean() if is_enough else None
        if logits is None:
            return [load.amax(), dead, None, None]
        scores = logits.reshape(-1, logits.shape[-1]).float()
        log_p = scores.log_softmax(dim=-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1).mean() / math.log(self._size)
        return [load.amax(), dead, entropy, scores.logsumexp(dim=-1).square().mean()]

    def _find_logits(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        size = self._size
        for tensor in tensors:
            is_scores = tensor.is_floating_point() and tensor.dim() > 1 and tensor.shape[-1] > 1
            if is_scores and size in (0, tensor.shape[-1]):
                return tensor
        return None

    def _remember(self, load: torch.Tensor) -> torch.Tensor:
        if self._average is None:
            self._average = torch.full_like(load, math.nan)
        later = MEMORY * self._average + (1.0 - MEMORY) * load
        self._average.copy_(torch.where(self._average.isnan(), load, later))
        return self._average


def _top_k(module: nn.Module) -> int:
    return _first_int(module, ("top_k", "num_experts_per_tok", "topk", "k"))


def _num_experts(module: Any) -> int:
    return _first_int(module, ("num_experts", "n_experts", "num_local_experts"))


def _first_int(module: Any, names: Sequence[str]) -> int:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if type(value) is int and value > 0), 0)
