"""Five runs that the rule of the trial was not fitted on: a byte GPT in bf16, a CNN with BatchNorm,
a GRU, a small GPT-2 in the Trainer of Hugging Face, and convolutions over time in Lightning's."""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional as F

from benchmarks.recover.worlds import VOCABULARY, WORLDS, Data, World

GPT_WIDTH, CONV_WIDTH, MODULUS = 24, 32, 31


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(GPT_WIDTH), nn.LayerNorm(GPT_WIDTH)])
        self.qkv = nn.Linear(GPT_WIDTH, 3 * GPT_WIDTH, bias=False)
        self.out = nn.Linear(GPT_WIDTH, GPT_WIDTH, bias=False)
        self.dropout = nn.Dropout(0.0)
        self.mlp = nn.Sequential(
            nn.Linear(GPT_WIDTH, 4 * GPT_WIDTH), nn.GELU(), nn.Linear(4 * GPT_WIDTH, GPT_WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], 4, GPT_WIDTH // 4)
        parts = self.qkv(self.norms[0](x)).float().chunk(3, -1)  # softmax in fp32, as is usual
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        changed: torch.Tensor = x + self.dropout(self.mlp(self.norms[1](x)))
        return changed


class ByteGPT(nn.Module):
    """A transformer on bytes, two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, GPT_WIDTH)
        self.places = nn.Embedding(256, GPT_WIDTH)
        self.blocks = nn.Sequential(_Attention(), _Attention(), nn.LayerNorm(GPT_WIDTH))
        self.head = nn.Linear(GPT_WIDTH, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(tokens.shape[1]))
        logits: torch.Tensor = self.head(self.blocks(self.embed(tokens) + places))
        return logits


class SmallCNN(nn.Module):
    """Convolutions with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 12, 3, padding=1)
        self.blocks = nn.Sequential(
            *(nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1)),
            *(nn.BatchNorm2d(24), nn.ReLU(), nn.Dropout(0.0), nn.AdaptiveAvgPool2d(2)),
            nn.Flatten(),
        )
        self.head = nn.Linear(96, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.embed(images)))
        return logits


class SmallGRU(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 24)
        self.blocks = nn.GRU(24, 48, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.dropout(self.blocks(self.embed(tokens))[0]))
        return logits


class _Convolution(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.norm = nn.LayerNorm(CONV_WIDTH)
        self.mix = nn.Conv1d(CONV_WIDTH, CONV_WIDTH, 3, dilation=dilation)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(self.norm(x).transpose(1, 2), (self.past, 0))
        changed: torch.Tensor = x + self.dropout(F.gelu(self.mix(padded)).transpose(1, 2))
        return changed


class SmallConvolutions(nn.Module):
    """Causal convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(MODULUS, CONV_WIDTH)
        self.blocks = nn.Sequential(_Convolution(1), _Convolution(2), nn.LayerNorm(CONV_WIDTH))
        self.head = nn.Linear(CONV_WIDTH, MODULUS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.embed(tokens)))
        return logits


def small_gpt2() -> nn.Module:
    """Return a GPT-2 of transformers with dropout 0.1, whose forward pass returns the logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    class SmallGPT2(GPT2LMHeadModel):  # type: ignore[misc]
        """Names its parts as the other models do."""

        head = property(lambda self: self.lm_head)
        embed = property(lambda self: self.transformer.wte)
        blocks = property(lambda self: self.transformer.h)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = super().forward(input_ids=tokens, use_cache=False).logits
            return logits

    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    return SmallGPT2(GPT2Config(**sizes, tie_word_embeddings=False))


@functools.cache
def _bytes(which: int) -> torch.Tensor:
    """Return Python of torch, or its headers in C++."""
    root = Path(torch.__file__).parent
    names = sorted((root / "nn").rglob("*.py") if which == 0 else root.rglob("ATen/core/*.h"))
    text = b"".join(path.read_bytes() for path in names)[: 1 << 20]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def _byte_batch(data: Data, dice: torch.Generator) -> torch.Tensor:
    size, length = data.size, 2 * data.length
    rows = []
    for row in range(size):
        text = _bytes(row % 2 if data.table == 2 else data.table)
        at = int(torch.randint(0, len(text) - length - 1, (1,), generator=dice))
        rows.append(text[at : at + length + 1])
    tokens = torch.stack(rows)
    if data.temperature != 1:  # easy: the second half repeats the first, as far as it goes
        period = max(int(length * data.temperature), 2)
        tokens = tokens[:, torch.arange(length + 1) % period]
    random = torch.randint(0, 256, tokens.shape, generator=dice)
    return torch.where(torch.rand(tokens.shape, generator=dice) < data.noise, random, tokens)


def _byte_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


@functools.cache
def _patterns() -> torch.Tensor:
    """Return the pictures of ten classes, of two kinds."""
    drawn = torch.randn(2, 10, 1, 6, 6, generator=torch.Generator().manual_seed(77))
    return F.interpolate(drawn.flatten(0, 1), scale_factor=2, mode="bilinear").view(
        2, 10, 1, 12, 12
    )


def _pictures(data: Data, dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 10, (4 * data.size,), generator=dice)
    which = torch.full_like(labels, data.table % 2)
    if data.table == 2:
        which = torch.randint(0, 2, labels.shape, generator=dice)
    made = _patterns()[which, labels]
    shift = int(torch.randint(-3, 4, (1,), generator=dice))
    noise = torch.randn(made.shape, generator=dice)
    pictures = made.roll(shift, -1) + 1.5 * data.temperature * noise
    random = torch.randint(0, 10, labels.shape, generator=dice)
    is_random = torch.rand(labels.shape, generator=dice) < data.noise
    return pictures, torch.where(is_random, random, labels)


_FACTORS = torch.tensor([[2, 3, 5, 7, 11, 13], [17, 19, 21, 23, 26, 29]])
"""What the numbers of a sequence are multiplied by, of two kinds."""


def _progressions(data: Data, dice: torch.Generator) -> torch.Tensor:
    """Return numbers of which each follows from the one before by a rule of its sequence."""
    size = 2 * data.size
    which = torch.full((size,), data.table % 2)
    if data.table == 2:
        which = torch.randint(0, 2, (size,), generator=dice)
    rules = max(int(6 * min(data.temperature, 1.0)), 1)
    factor = _FACTORS[which, torch.randint(0, rules, (size,), generator=dice)]
    term = torch.randint(0, 3, (size,), generator=dice)
    numbers = [torch.randint(0, MODULUS, (size,), generator=dice)]
    for _ in range(data.length):
        numbers.append((numbers[-1] * factor + term) % MODULUS)
    tokens = torch.stack(numbers, 1)
    random = torch.randint(0, MODULUS, tokens.shape, generator=dice)
    is_random = torch.rand(tokens.shape, generator=dice) < 0.1 + 0.9 * data.noise
    return torch.where(is_random, random, tokens)


GPT2_WORLD = World(
    name="GPT-2, HF Trainer",
    model=small_gpt2,
    optimizer=lambda p: optim.AdamW(p, 3e-3, weight_decay=0.01),
    draw=WORLDS[0].draw,
    loss=WORLDS[0].loss,
)
LIGHTNING_WORLD = World(
    name="convolutions, Lightning",
    model=SmallConvolutions,
    optimizer=lambda p: optim.Adam(p, 3e-3, weight_decay=1e-5),
    draw=_progressions,
    loss=WORLDS[0].loss,
)
TRIAL_WORLDS = (
    World(
        name="byte GPT, bf16 autocast",
        model=ByteGPT,
        optimizer=lambda p: optim.AdamW(p, 2e-3, weight_decay=0.1, betas=(0.9, 0.95)),
        draw=_byte_batch,
        loss=_byte_loss,
    ),
    World(
        name="CNN with BatchNorm, SGD",
        model=SmallCNN,
        optimizer=lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=5e-4),
        draw=_pictures,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    ),
    World(
        name="GRU",
        model=SmallGRU,
        optimizer=lambda p: optim.AdamW(p, 4e-3, weight_decay=0.01),
        draw=WORLDS[0].draw,
        loss=WORLDS[0].loss,
    ),
    GPT2_WORLD,
    LIGHTNING_WORLD,
)
