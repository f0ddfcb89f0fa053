"""Three small runs: a language model, a classifier with BatchNorm and SGD, a regression."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH = 32, 24, 12


class Block(nn.Module):
    """A block that mixes over time by a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(0.0)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        change: torch.Tensor = self.dropout(self.mlp(y + self.mix(y).cumsum(1) * 0.1))
        return x + change


class Language(nn.Module):
    """A language model of some ten thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.embed(tokens)))
        return logits


class Classifier(nn.Module):
    """A classifier with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 48)
        self.blocks = nn.Sequential(nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.0))
        self.head = nn.Linear(48, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.embed(x)))
        return logits


class Regression(nn.Module):
    """A regression that converges far: its loss falls by orders of magnitude."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.blocks = nn.Sequential(nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.0))
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.blocks(self.embed(x)))
        return made


@dataclass
class Data:
    """What batches are drawn from; a change may alter it."""

    size: int = 8
    length: int = LENGTH
    table: int = 0
    """Which of two languages, classes or functions; 2 is half of each batch of either."""
    noise: float = 0.0
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True)
class World:
    """One kind of run."""

    name: str
    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], optim.Optimizer]
    draw: Callable[[Data, torch.Generator], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]


def _tables(which: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7 + which))


def _language_batch(data: Data, dice: torch.Generator) -> torch.Tensor:
    if data.table == 2:
        half = dataclasses.replace(data, size=max(data.size // 2, 1))
        parts = [dataclasses.replace(half, table=which) for which in (0, 1)]
        return torch.cat([_language_batch(part, dice) for part in parts])
    chances = torch.softmax(
        _tables(data.table, VOCABULARY, VOCABULARY) * 2.5 / data.temperature, -1
    )
    tokens = torch.randint(0, VOCABULARY, (data.size, 1), generator=dice)
    for _ in range(data.length):
        following = torch.multinomial(chances[tokens[:, -1]], 1, generator=dice)
        tokens = torch.cat([tokens, following], 1)
    random = torch.randint(0, VOCABULARY, tokens.shape, generator=dice)
    return torch.where(torch.rand(tokens.shape, generator=dice) < data.noise, random, tokens)


def _language_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def _points(data: Data, dice: torch.Generator, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(data.size * 4, width, generator=dice)
    which = torch.full((len(x),), data.table % 2)
    if data.table == 2:
        which = torch.randint(0, 2, (len(x),), generator=dice)
    return x, which


def _classes(data: Data, dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x, which = _points(data, dice, 16)
    tables = torch.stack([_tables(table, 16, 8) for table in (0, 1)])
    labels = torch.einsum("ni,nic->nc", x, tables[which]).argmax(1)
    random = torch.randint(0, 8, labels.shape, generator=dice)
    return x, torch.where(torch.rand(labels.shape, generator=dice) < data.noise, random, labels)


def _functions(data: Data, dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x, which = _points(data, dice, 8)
    tables = torch.stack([_tables(table, 8, 2) for table in (0, 1)])
    made = torch.einsum("ni,nio->no", x, tables[which]) / data.temperature
    return x, made + data.noise * torch.randn(made.shape, generator=dice)


WORLDS = (
    World(
        name="language model",
        model=Language,
        optimizer=lambda p: optim.AdamW(p, 3e-3, weight_decay=0.01),
        draw=_language_batch,
        loss=_language_loss,
    ),
    World(
        name="classifier, SGD",
        model=Classifier,
        optimizer=lambda p: optim.SGD(p, 0.05, momentum=0.9),
        draw=_classes,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    ),
    World(
        name="regression",
        model=Regression,
        optimizer=lambda p: optim.Adam(p, 1e-3),
        draw=_functions,
        loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
    ),
)


@dataclass
class Run:
    """A run that is under way; a change may alter any of it."""

    world: World
    model: Any
    optimizer: optim.Optimizer
    data: Data = field(default_factory=Data)
    loss: Callable[[nn.Module, Any], torch.Tensor] | None = None
    """In place of the world's."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What a change keeps from step to step."""

    def batch_loss(self, batch: Any) -> torch.Tensor:
        return (self.loss or self.world.loss)(self.model, batch)


Change = Callable[[Run, int], None]
"""What befalls a run: it is called before every step, with the number of the step."""
