"""What a kind of healthy run is, the loop that trains it, data and models that several share."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.session import Session

STEPS = 1500
CLASSES, FEATURES = 10, 32
VOCABULARY, WIDTH = 24, 32


@dataclass
class Setup:
    """What a kind trains."""

    optimizer: torch.optim.Optimizer
    next_loss: Callable[[int], Tensor]
    clip: float | None = None
    schedule: Any = None
    accumulate: int = 1
    after: Callable[[int], None] = lambda number: None
    """Called after each step."""


KINDS: dict[str, Callable[[Session], Setup]] = {}


def kind(name: str) -> Callable[[Callable[[Session], Setup]], Callable[[Session], Setup]]:
    """Register a kind."""

    def register(make: Callable[[Session], Setup]) -> Callable[[Session], Setup]:
        KINDS[name] = make
        return make

    return register


def half_of(name: str) -> str:
    """Return which half of the kinds one belongs to: rules were chosen with "tune" alone."""
    return ("tune", "report")[hashlib.sha256(name.encode()).digest()[0] % 2]


def train(name: str, session: Session, steps: int = STEPS) -> None:
    setup = KINDS[name](session)
    for number in range(steps):
        losses = [setup.next_loss(number * setup.accumulate + k) for k in range(setup.accumulate)]
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        session.step(setup.optimizer, loss, clip=setup.clip)
        if setup.schedule is not None:
            setup.schedule.step()
        setup.after(number)


def points(
    session: Session, count: int = 4000, classes: int = CLASSES, noise: float = 0.02, size: int = 32
) -> tuple[Tensor, Tensor]:
    centres = session.normal(classes, size)
    labels = session.pick(classes, count)
    data = centres[labels] + session.normal(count, size)
    wrong = session.uniform(count) < noise
    return data, torch.where(wrong, session.pick(classes, count), labels)


def images(session: Session, count: int = 1000) -> tuple[Tensor, Tensor]:
    """Pictures of 8 x 8 with one of ten textures."""
    textures = session.normal(CLASSES, 1, 8, 8)
    labels = session.pick(CLASSES, count)
    return textures[labels] + 0.8 * session.normal(count, 1, 8, 8), labels


def cnn(width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * width, CLASSES),
    )


def adam(*modules: nn.Module, lr: float = 1e-3, decay: float = 0.01) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for m in modules for p in m.parameters()], lr, weight_decay=decay)


def sgd(*modules: nn.Module, lr: float = 0.05, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD([p for m in modules for p in m.parameters()], lr, momentum=momentum)


def epochs(session: Session, count: int, batch: int) -> Callable[[int], Tensor]:
    """Rows in shuffled epochs, the last batch of each a short one."""
    order: list[Tensor] = []

    def rows(_: int) -> Tensor:
        if not order:
            order.extend(torch.randperm(count, generator=session.generator).split(batch)[::-1])
        return order.pop()

    return rows


def xent(model: nn.Module, data: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return functional.cross_entropy(model(data), labels, **options)


class LanguageModel(nn.Module):
    """A GRU with an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.recurrent = nn.GRU(16, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.recurrent(self.embedding(tokens))[0])
        return scores


def markov(seed: int, sharpness: float, length: int = 30_000) -> Tensor:
    """A text of a random language; a sharper one is easier."""
    dice = np.random.default_rng([seed, 3])
    odds = np.exp(sharpness * dice.standard_normal((VOCABULARY, VOCABULARY)))
    sums = (odds / odds.sum(1, keepdims=True)).cumsum(1)
    text, current = [], 0
    for luck in dice.random(length):
        current = min(int(np.searchsorted(sums[current], luck)), VOCABULARY - 1)
        text.append(current)
    return torch.tensor(text)


def windows(text: Tensor, session: Session, batch: int, length: int) -> Tensor:
    """Random pieces of a text."""
    return text[session.pick(len(text) - length - 1, batch)[:, None] + torch.arange(length + 1)]


def loss_on(model: nn.Module, rows: Tensor, reduction: str = "mean") -> Any:
    scores = model(rows[:, :-1])
    return functional.cross_entropy(
        scores.flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction
    )
