"""Causal attention with rotary positions; optionally measures its largest logit on the device."""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.lab.model.sizes import ModelConfig

_ROTARY_BASE = 10_000.0
"""Slowest wavelength divided by 2 pi, in positions (RoFormer)."""

_NORM_EPSILON = 1e-5
"""Keeps the norm of a zero vector finite (Llama 2)."""


class RMSNorm(nn.Module):
    """Scales each vector to root mean square 1, always in fp32, and learns a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The normalised vectors, in the input's dtype."""
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight.float(), _NORM_EPSILON)
        return normed.to(x.dtype)


def rotary_table(length: int, head_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of each position and channel pair: (length, head_size / 2)."""
    # Recomputed by each layer, in a few microseconds: a buffer would be lost on the meta device and
    # fix the maximum length, and FSDP2 would round a table passed to a block to bf16.
    pairs = torch.arange(0, head_size, 2, dtype=torch.float32, device=device) / head_size
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, _ROTARY_BASE**-pairs)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each channel pair of (..., length, head_size) by the angle of its position."""
    # In fp32: bf16 keeps 8 bits of an angle's cosine, too few to tell neighbouring positions apart.
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.norm_query = RMSNorm(config.head_size) if config.qk_norm else None
        self.norm_key = RMSNorm(config.head_size) if config.qk_norm else None
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, measure: bool) -> tuple[Tensor, Tensor | None]:
        """The attention output, and the largest logit if `measure` is set."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if self.norm_query is not None and self.norm_key is not None:
            query, key = self.norm_query(query), self.norm_key(key)
        table = rotary_table(length, width // self.heads, x.device)
        query, key = rotate(query, *table), rotate(key, *table)
        gathered = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        # Measured in addition to the fused kernel, not instead: training stays bit-identical.
        peak = max_attention_logit(query, key) if measure else None
        return self.out(gathered.transpose(1, 2).reshape(batch, length, width)), peak


@torch.no_grad()
def max_attention_logit(query: Tensor, key: Tensor) -> Tensor:
    """The largest scaled logit over all pairs that causal attention uses, in fp32.

    Needs memory for all logits of the layer: (batch, heads, length, length).
    """
    # Without autocast, as in the fused kernel: a logit of 10^5 must not become inf in fp16.
    device = query.device.type
    has_autocast = torch.amp.is_autocast_available(device)  # the meta device has none
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        logits = query.float() @ key.float().transpose(-2, -1) / math.sqrt(query.shape[-1])
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(future, -torch.inf).amax()
