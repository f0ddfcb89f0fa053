"""A small GPT in plain torch, written so that faults can be planted in it."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tests.kit.check_objects.architectures import VOCAB
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A healthy model by default; each option plants a fault."""

    width: int = 64
    layers: int = 4
    is_causal: bool = True
    detached: int | None = None
    """Block behind which no gradient passes."""


class Block(nn.Module):
    """Attention and MLP, pre-norm."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        width = options.width
        self.options = options
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after this block."""
        x = x + self._attention(self.norm_attention(x))
        mlp: Tensor = self.down_proj(F.gelu(self.up(self.norm_mlp(x))))
        return x + mlp

    def _attention(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = (
            part.view(rows, length, 4, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        q, k, v = heads
        logits = q @ k.transpose(-1, -2) / math.sqrt(width // 4)
        if self.options.is_causal:
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
        shares = logits.float().softmax(-1).to(v.dtype)
        mixed: Tensor = self.out_proj((shares @ v).transpose(1, 2).reshape(rows, length, width))
        return mixed


class SmallGpt(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()
        options = options or Options()
        self.options = options
        self.embed = nn.Embedding(VOCAB, options.width)
        self.position = nn.Embedding(128, options.width)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, VOCAB, bias=False)
        self.apply(self._init)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Block):
            for part in (module.out_proj, module.down_proj):
                nn.init.normal_(part.weight, std=0.02 / math.sqrt(2 * self.options.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == self.options.detached:
                x = x.detach()
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_token_loss(model: nn.Module, batch: Any) -> Tensor:
    tokens = batch["input_ids"]
    logits = model(tokens)[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits.float(), batch["labels"][:, 1:].flatten())
