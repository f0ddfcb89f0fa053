"""Gpt: pre-norm, RMSNorm, SwiGLU, rotary positions.

    tokens -> embed
           -> x + attention(norm_attention(x)) -> x + mlp(norm_mlp(x))     once per block
           -> norm -> head (or the embedding, transposed) -> loss

Parameter names: `embed.weight`, `blocks.0.attention.qkv.weight`, `blocks.0.mlp.up.weight`,
`blocks.0.norm_mlp.weight`, `norm.weight`, `head.weight`. There is no dropout and no bias.
"""

import math
from contextlib import nullcontext
from typing import NamedTuple

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
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight.float(), _NORM_EPSILON)
        return normed.to(x.dtype)


def rotary_table(length: int, head_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of each position and channel pair: (length, head_size / 2)."""
    # Recomputed by each layer, in a few microseconds: a buffer would fix the maximum length.
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
        """Return the attention output, and the largest logit if `measure` is set."""
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
    """Return the largest scaled logit over all pairs that causal attention uses, in fp32.

    Needs memory for all logits of the layer: (batch, heads, length, length).
    """
    # Without autocast, as in the fused kernel: a logit of 10^5 must not become inf in fp16.
    device = query.device.type
    has_autocast = torch.amp.is_autocast_available(device)  # the meta device has none
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        logits = query.float() @ key.float().transpose(-2, -1) / math.sqrt(query.shape[-1])
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(future, -torch.inf).amax()


# Named tuples, not dataclasses: DDP and torch.compile find the tensors inside them.
class Signals(NamedTuple):
    """What a forward pass measured, still on the device."""

    max_attention_logit: Tensor
    """Largest attention logit of each block: (layers,)."""
    max_log_z: Tensor
    """Largest |log Z| over all tokens; Z is the sum of the exponentials of a token's logits."""
    token_losses: Tensor
    """Cross-entropy of each token: (batch, length); 0 where the target is masked."""


class Output(NamedTuple):
    """The output of a forward pass."""

    loss: Tensor
    """What is trained on: the cross-entropy, unless a fault makes something else of it."""
    cross_entropy: Tensor
    """What is logged: the mean over all tokens that are not masked, in fp32; NaN if all are."""
    logits: Tensor
    """Scores of the next token: (batch, length, vocab_size)."""
    signals: Signals | None
    """None unless `Gpt.measure` is set."""


class Mlp(nn.Module):
    """SwiGLU: one projection decides how much of the other passes."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class TransformerBlock(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.post_norm = config.post_norm
        self.norm_attention = RMSNorm(config.width)
        self.attention = Attention(config)
        self.norm_mlp = RMSNorm(config.width)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, measure: bool) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream after the block; the largest attention logit if measured."""
        if self.post_norm:
            gathered, peak = self.attention(x, measure)
            x = self.norm_attention(x + gathered)
            return self.norm_mlp(x + self.mlp(x)), peak
        gathered, peak = self.attention(self.norm_attention(x), measure)
        x = x + gathered
        return x + self.mlp(self.norm_mlp(x)), peak


class Gpt(nn.Module):
    """A small GPT with the architecture of large ones.

    Equal configs and generators give bit-identical weights on every device.
    Without a generator, torch's global one is used.
    """

    def __init__(self, config: ModelConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.measure = False
        """Whether forward passes return `Signals`; training stays bit-identical."""
        device = torch.get_default_device()
        # torch's default init would spend time and random numbers on values that are discarded.
        with torch.device("meta"):
            self.embed = nn.Embedding(config.vocab_size, config.width)
            self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
            self.norm = RMSNorm(config.width)
            # A tied head is not a module: `to_empty` and checkpoints would make two tensors of it.
            self.head = (
                None if config.tied_head else nn.Linear(config.width, config.vocab_size, bias=False)
            )
        if device.type != "meta":
            self.to_empty(device=device)
            self.init_weights(generator)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Fill all parameters; the generator must be on the CPU."""
        for name, parameter in self.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                # Drawn on the CPU: bit-identical on every device.
                values = torch.empty(parameter.shape, device="cpu")
                parameter.copy_(values.normal_(std=self._std(name), generator=generator))

    def _std(self, name: str) -> float:
        """Standard deviation of a matrix's initial weights."""
        std = self.config.base_std
        if not name.startswith("blocks."):
            return std
        # muP: the variance of hidden weights falls with the fan-in; the others keep theirs.
        std /= math.sqrt(self.config.mup_multiplier)
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            # GPT-2: each layer adds twice to the residual stream, whose variance must not grow.
            std /= math.sqrt(2 * self.config.layers)
        return std

    def forward(self, tokens: Tensor, targets: Tensor) -> Output:
        """Predict each next token; both inputs are (batch, length); targets of -100 are masked."""
        x = self.embed(tokens)
        peaks: list[Tensor] = []
        for block in self.blocks:
            x, peak = block(x, self.measure)
            if peak is not None:
                peaks.append(peak)
        x = self.norm(x)
        if self.config.mup_base_width is not None:
            x = x / self.config.mup_multiplier  # muP: logits must not grow with the width
        logits = F.linear(x, self.embed.weight) if self.head is None else self.head(x)
        return self._score(logits, targets, peaks)

    def _score(self, logits: Tensor, targets: Tensor, peaks: list[Tensor]) -> Output:
        """Return the loss, and the signals if measuring is on."""
        # fp32: a softmax over thousands of tokens in half precision loses small probabilities.
        scores, wanted = logits.float().flatten(0, 1), targets.flatten()
        loss = F.cross_entropy(scores, wanted)
        signals = None
        if peaks:
            with torch.no_grad():
                signals = Signals(
                    max_attention_logit=torch.stack(peaks),
                    max_log_z=scores.logsumexp(-1).abs().amax(),
                    token_losses=F.cross_entropy(scores, wanted, reduction="none").view_as(targets),
                )
        return Output(loss=loss, cross_entropy=loss, logits=logits, signals=signals)
