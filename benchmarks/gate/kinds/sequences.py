"""Small language models on Markov chains."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gate.kinds.registry import add
from benchmarks.gate.session import Session, adamw, mean

VOCABULARY, WIDTH = 24, 32


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


def windows(text: Tensor, generator: torch.Generator, batch: int, length: int) -> Tensor:
    """Random pieces of a text."""
    starts = torch.randint(0, len(text) - length - 1, (batch, 1), generator=generator)
    return text[starts + torch.arange(length + 1)]


def loss_on(model: nn.Module, rows: Tensor, reduction: str = "mean") -> Tensor:
    scores = model(rows[:, :-1])
    return functional.cross_entropy(
        scores.flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction
    )


def eval_loss(model: nn.Module, text: Tensor) -> float:
    with torch.no_grad():
        generator = torch.Generator().manual_seed(777)
        return float(loss_on(model, windows(text, generator, 512, 16)))


def language_model(
    session: Session,
    next_rows: Callable[[Session, int], Tensor],
    text: Tensor,
    *,
    steps: int,
    lr: float = 3e-3,
    model: nn.Module | None = None,
    restart: int | None = None,
) -> float:
    """Train on `next_rows`; returns the loss on `text`."""
    model = model or LanguageModel()
    optimizer = adamw(model, lr)
    schedule = None
    if restart is not None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, restart)
    for number in range(steps):
        session.step(optimizer, loss_on(model, next_rows(session, number)), clip=1.0)
        if schedule is not None:
            schedule.step()
    return eval_loss(model, text)


def mixture(session: Session, share: float, sharpness: float, steps: int = 4000) -> float:
    """Some batches are of a second language; the quality is the loss on that."""
    first, second = markov(1, 2.5), markov(2, sharpness)

    def rows(session: Session, _: int) -> Tensor:
        text = second if session.dice.random() < share else first
        return windows(text, session.generator, 16, 16)

    return language_model(session, rows, second, steps=steps)


def blocks(session: Session) -> float:
    """Sorted data: 300 steps of each of five languages in turn."""
    sharpness = (2.5, 1.0, 2.0, 0.7, 3.0)
    texts = [markov(number + 1, value, 15_000) for number, value in enumerate(sharpness)]

    def rows(session: Session, number: int) -> Tensor:
        return windows(texts[(number // 300) % 5], session.generator, 16, 16)

    return language_model(session, rows, torch.cat(texts), steps=4500)


def one_text(
    session: Session,
    shape: Callable[[Session, int], tuple[int, int]],
    *,
    steps: int,
    lr: float = 3e-3,
    restart: int | None = None,
) -> float:
    """One language, in batches whose shape may change."""
    text = markov(1, 2.0)

    def rows(session: Session, number: int) -> Tensor:
        return windows(text, session.generator, *shape(session, number))

    return language_model(session, rows, text, steps=steps, lr=lr, restart=restart)


def by_heart(session: Session) -> float:
    """32 sequences learnt by heart, 4 at a time."""
    kept = markov(1, 1.0, 32 * 17).view(32, 17)

    def rows(session: Session, _: int) -> Tensor:
        return kept[session.pick(32, 4)]

    model = LanguageModel()
    language_model(session, rows, kept.flatten(), steps=4000, model=model)
    with torch.no_grad():
        return float(loss_on(model, kept))


def summed(session: Session) -> float:
    """The loss is a sum over tokens, of sequences of 2 to 200."""
    text = markov(1, 2.0)
    model = LanguageModel()
    optimizer = adamw(model)
    for _ in range(3000):
        length = int(np.clip(session.dice.lognormal(2.3, 0.9), 2, 200))
        rows = windows(text, session.generator, 4, length)
        session.step(optimizer, loss_on(model, rows, "sum") / 4, clip=1.0)
    return eval_loss(model, text)


def recall(session: Session) -> float:
    """Copying a sequence that has to be remembered: a plateau, then a sudden fall."""
    model = LanguageModel()
    optimizer = adamw(model, lr=3e-3)
    losses = []
    for _ in range(4000):
        half = session.pick(8, 16 * 3).view(16, 3)
        rows = torch.cat((half, half), dim=1)
        scores = model(rows[:, :-1])[:, 2:]
        loss = functional.cross_entropy(scores.flatten(0, 1), rows[:, 3:].flatten())
        session.step(optimizer, loss, clip=1.0)
        losses.append(float(loss.detach()))
    return mean(losses[-500:])


_SECOND, _LOSS = "loss on the second language", "loss on the text"
for _share in (0.02, 0.08):
    add(
        f"language model, {_share:.0%} of a harder language",
        _SECOND,
        partial(mixture, share=_share, sharpness=1.0),
    )
for _share in (0.01, 0.02, 0.05):
    add(
        f"language model, {_share:.0%} of a second language",
        _SECOND,
        partial(mixture, share=_share, sharpness=2.5, steps=5000),
    )
add("language model, blocks of 300 steps", "loss on all languages", blocks)
add(
    "language model, sequence lengths 4 to 32",
    _LOSS,
    partial(one_text, shape=lambda _, n: (16, (4, 8, 16, 32)[n // 1000]), steps=4000),
)
add(
    "language model, batch 1",
    _LOSS,
    partial(one_text, shape=lambda _, n: (1, 8), steps=5000, lr=1e-3),
)
add(
    "language model, batch 2 to 64",
    _LOSS,
    partial(one_text, shape=lambda _, n: (2 * 2 ** (n // 700), 16), steps=4200, lr=1e-3),
)
add(
    "language model, warm restarts",
    _LOSS,
    partial(one_text, shape=lambda _, n: (32, 16), steps=4000, lr=2e-2, restart=500),
)
add("sequences learnt by heart", "loss on them", by_heart)
add("summed loss, lengths 2 to 200", _LOSS, summed)
add("copying task", "loss of the last 500 steps", recall)
