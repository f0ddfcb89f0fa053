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
    scale: float = 1.0
    """Of attention logits."""
    is_low_softmax: bool = False
    detached: int | None = None
    """Block behind which no gradient passes."""
    has_norms: bool = True
    gradient_share: float = 1.0
    """Share of the gradient that passes each block."""
    gain: float = 1.0
    """Factor on the output of each block, without norms."""
    noise: bool = False
    """Draws from a generator that no seed reaches."""
    activation: str = "gelu"
    bias: float = 0.0
    """Of the first layer of each MLP."""
    offset: float = 0.0
    """Added in front of the loss, and taken away: exact in fp32, not in bf16."""
    masks_first: bool = False
    """The first query may look at nothing."""


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
        options = self.options
        if not options.has_norms:
            return options.gain * (x + self._mlp(x))
        x = x + self._attention(self.norm_attention(x))
        return x + self._mlp(self.norm_mlp(x))

    def _attention(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = (
            part.view(rows, length, 4, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        q, k, v = heads
        logits = self.options.scale * q @ k.transpose(-1, -2) / math.sqrt(width // 4)
        if self.options.is_causal:
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            if self.options.masks_first:
                hidden[0, 0] = True
            logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
        if self.options.is_low_softmax:
            shares = logits.bfloat16().softmax(-1).to(v.dtype)
        else:
            shares = logits.float().softmax(-1).to(v.dtype)
        mixed: Tensor = self.out_proj((shares @ v).transpose(1, 2).reshape(rows, length, width))
        return mixed

    def _mlp(self, x: Tensor) -> Tensor:
        act = F.relu if self.options.activation == "relu" else F.gelu
        out: Tensor = self.down_proj(act(self.up(x)))
        return out


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
        self._hidden = torch.Generator().manual_seed(1)
        self.apply(self._init)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Block):
            nn.init.constant_(module.up.bias, self.options.bias)
            for part in (module.out_proj, module.down_proj):
                nn.init.normal_(part.weight, std=0.02 / math.sqrt(2 * self.options.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        if self.options.noise:
            x = x + 0.01 * torch.randn(x.shape, generator=self._hidden)
        for place, block in enumerate(self.blocks):
            x = block(x)
            share = self.options.gradient_share
            if share < 1:
                x = share * x + (1 - share) * x.detach()
            if place == self.options.detached:
                x = x.detach()
        if self.options.has_norms:
            x = self.norm(x)
        logits: Tensor = self.head(x)
        if self.options.offset:
            ones = logits.new_ones(logits.shape[-1], 1)
            shift = self.options.offset * ones @ ones.new_ones(1, 1)  # in bf16 under autocast
            logits = (logits + shift.T.to(logits.dtype)) - shift.T.to(logits.dtype)
        return logits


def next_token_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of the next tokens."""
    tokens = batch["input_ids"]
    logits = model(tokens)[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits.float(), batch["labels"][:, 1:].flatten())
