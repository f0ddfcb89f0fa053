"""Models for the set-ups: what other people train, in a few hundred parameters."""

from collections.abc import Callable
from typing import Any

import torch
from tests.kit.tiny import VOCABULARY, WIDTH, make_model
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


def noise(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, 8, 8, generator=generator) for _ in range(count)]


def mean_square(model: Any, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - 1).square().mean()
    return loss


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1)
    )


def built_convolutional() -> nn.Module:
    model = convolutional()
    torch.manual_seed(0)
    model(noise(1)[0])
    return model


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.cell = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.cell(self.embed(tokens))[0])
        return logits


class Routed(nn.Module):
    """A mixture of experts: each batch takes one of four."""

    def __init__(self) -> None:
        super().__init__()
        whole = make_model()
        self.embed, self.head = whole.embed, whole.head
        self.experts = nn.ModuleList(make_model(seed).blocks[0] for seed in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        chosen = self.experts[int(tokens.sum()) % 4]
        logits: torch.Tensor = self.head(chosen(self.embed(tokens)))
        return logits


class LowRank(nn.Module):
    """LoRA by hand around a frozen layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.up(self.down(x))
        return y


def seeded(kind: Callable[[], Any]) -> Callable[[], Any]:
    def make() -> Any:
        torch.manual_seed(0)
        return kind()

    return make


def tied() -> Any:
    model = make_model()
    model.head.weight = model.embed.weight
    return model


def low_rank() -> Any:
    model = make_model().requires_grad_(False)
    torch.manual_seed(0)
    for block in model.blocks:
        block.attention = LowRank(block.attention)  # type: ignore[arg-type]
        block.attention.down.requires_grad_(True)
        block.attention.up.requires_grad_(True)
    return model


def trainable(model: Any) -> Any:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def checkpointed() -> Any:
    model = make_model()
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=False)
    return model


def spectral() -> Any:
    model = make_model()
    for block in model.blocks:
        parametrizations.spectral_norm(block.attention)  # type: ignore[arg-type]
    return model


def in_dtype(dtype: torch.dtype) -> Callable[[], Any]:
    return lambda: make_model().to(dtype)
