"""Language models on Markov chains, speech, graphs, tables, equations."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from benchmarks.zoo.kinds import (
    CLASSES,
    FEATURES,
    STEPS,
    LanguageModel,
    Setup,
    adam,
    kind,
    loss_on,
    markov,
    points,
    sgd,
    windows,
    xent,
)
from benchmarks.zoo.session import Session, mlp


@kind("speech, CTC, lengths vary")
def ctc(session: Session) -> Setup:
    model = nn.GRU(8, 32, batch_first=True)
    head = nn.Linear(32, 6)
    sounds = session.normal(6, 8)

    def loss(number: int) -> Any:
        lengths = [int(session.dice.integers(2, 7)) for _ in range(8)]
        words = [1 + session.pick(5, length) for length in lengths]
        frames = torch.zeros(8, 24, 8)
        for row, word in enumerate(words):
            spoken = sounds[word.repeat_interleave(24 // len(word))]
            frames[row, : len(spoken)] = spoken + 0.5 * session.normal(*spoken.shape)
        scores = head(model(frames)[0]).log_softmax(2).transpose(0, 1)
        return functional.ctc_loss(
            scores, torch.cat(words), torch.full((8,), 24), torch.tensor(lengths)
        )

    return Setup(adam(model, head, lr=2e-3), loss, clip=5.0)


@kind("language model, accumulation of 4")
def accumulated(session: Session) -> Setup:
    text, model = markov(3, 2.0), LanguageModel()
    return Setup(
        adam(model, lr=3e-3),
        lambda number: loss_on(model, windows(text, session, 4, 12)),
        clip=1.0,
        accumulate=4,
    )


@kind("language model, WSD schedule")
def wsd(session: Session) -> Setup:
    text, model = markov(4, 2.0), LanguageModel()
    optimizer = adam(model, lr=4e-3)
    schedule = lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100, max(0.0, (STEPS - step) / 500))
    )
    return Setup(
        optimizer,
        lambda number: loss_on(model, windows(text, session, 16, 12)),
        clip=1.0,
        schedule=schedule,
    )


@kind("mixture of experts with a balancing loss")
def experts(session: Session) -> Setup:
    data, labels = points(session)
    router = nn.Linear(FEATURES, 4)
    parts = nn.ModuleList([mlp(FEATURES, CLASSES, width=24) for _ in range(4)])

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        shares = router(data[rows]).softmax(1)
        best, chosen = shares.max(1)
        every = torch.stack([part(data[rows]) for part in parts], 1)
        scores = best[:, None] * every[torch.arange(32), chosen]
        load = functional.one_hot(chosen, 4).float().mean(0)
        return functional.cross_entropy(scores, labels[rows]) + 0.04 * (load @ shares.mean(0))

    return Setup(adam(router, parts), loss, clip=1.0)


@kind("graph, sparse batches")
def graph(session: Session) -> Setup:
    """Neighbourhoods of 1 to 60 nodes; labels known for few of them."""
    first, second = nn.Linear(FEATURES, 48), nn.Linear(48, 4)
    truth = session.normal(FEATURES, 4)

    def loss(number: int) -> Any:
        count = 1 + int(session.dice.geometric(0.08))
        nodes = session.normal(count, FEATURES)
        links = (session.uniform(count, count) < 3 / count).float() + torch.eye(count)
        links = links / links.sum(1, keepdim=True)
        labels = (links @ nodes @ truth).argmax(1)
        return functional.cross_entropy(second(links @ first(nodes).relu()), labels)

    return Setup(adam(first, second), loss)


@kind("time series, LSTM, mean square")
def series(session: Session) -> Setup:
    model, head = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)

    def loss(number: int) -> Any:
        phase, pace = 6.28 * session.uniform(8, 1), 0.2 + 0.3 * session.uniform(8, 1)
        time = torch.arange(25.0)
        wave = (phase + pace * time).sin() * (1 + (session.uniform(8, 1) < 0.05) * 4)
        wave = (wave + 0.05 * session.normal(8, 25))[:, :, None]
        return functional.mse_loss(head(model(wave[:, :-1])[0]), wave[:, 1:])

    return Setup(adam(model, head, lr=3e-3), loss, clip=1.0)


@kind("regression that converges to 1e-6")
def exact(session: Session) -> Setup:
    truth, model = session.normal(16, 4), nn.Linear(16, 4)
    optimizer = adam(model, lr=1e-2, decay=0.0)

    def loss(number: int) -> Any:
        data = session.normal(32, 16)
        return functional.mse_loss(model(data), data @ truth)

    return Setup(optimizer, loss, schedule=lr_scheduler.CosineAnnealingLR(optimizer, STEPS))


@kind("equation learnt from its residual")
def equation(session: Session) -> Setup:
    """u'' = -u with two ends fixed; the terms compete."""
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss(number: int) -> Any:
        place = (6.28 * session.uniform(32, 1)).requires_grad_()
        value = net(place)
        (slope,) = torch.autograd.grad(value.sum(), place, create_graph=True)
        (curve,) = torch.autograd.grad(slope.sum(), place, create_graph=True)
        ends = net(torch.tensor([[0.0], [1.5708]])) - torch.tensor([[0.0], [1.0]])
        return (curve + value).square().mean() + 20 * ends.square().mean()

    return Setup(adam(net), loss)


@kind("online, batch 1, plain SGD")
def online(session: Session) -> Setup:
    data, labels = points(session)
    model = nn.Linear(FEATURES, CLASSES)

    def loss(number: int) -> Any:
        row = session.pick(len(data), 1)
        return xent(model, data[row], labels[row])

    return Setup(sgd(model, lr=0.01, momentum=0.0), loss)


def _mixture(session: Session, share: float, sharpness: float) -> Setup:
    """Some batches are of a second language."""
    first, second, model = markov(1, 2.5), markov(2, sharpness), LanguageModel()

    def loss(number: int) -> Any:
        text = second if session.dice.random() < share else first
        return loss_on(model, windows(text, session, 16, 16))

    return Setup(adam(model, lr=3e-3), loss, clip=1.0)


kind("language model, 2% of a harder language")(lambda session: _mixture(session, 0.02, 1.0))
kind("language model, 1% of a second language")(lambda session: _mixture(session, 0.01, 2.5))


@kind("language model, blocks of 300 steps")
def blocks(session: Session) -> Setup:
    """Sorted data: 300 steps of each of five languages in turn."""
    model = LanguageModel()
    texts = [markov(n + 1, value, 15_000) for n, value in enumerate((2.5, 1.0, 2.0, 0.7, 3.0))]

    def loss(number: int) -> Any:
        return loss_on(model, windows(texts[(number // 300) % 5], session, 16, 16))

    return Setup(adam(model, lr=3e-3), loss, clip=1.0)


@kind("language model, batch 2 to 64")
def growing_batch(session: Session) -> Setup:
    text, model = markov(1, 2.0), LanguageModel()

    def loss(number: int) -> Any:
        return loss_on(model, windows(text, session, 2 * 2 ** (number // 250), 16))

    return Setup(adam(model), loss, clip=1.0)


@kind("summed loss, lengths 2 to 200")
def summed(session: Session) -> Setup:
    """The loss is a sum over tokens, of sequences of 2 to 200."""
    text, model = markov(1, 2.0), LanguageModel()

    def loss(number: int) -> Any:
        length = int(np.clip(session.dice.lognormal(2.3, 0.9), 2, 200))
        return loss_on(model, windows(text, session, 4, length), "sum") / 4

    return Setup(adam(model), loss, clip=1.0)


@kind("copying task")
def recall(session: Session) -> Setup:
    """Copying a sequence that has to be remembered: a plateau, then a sudden fall."""
    model = LanguageModel()

    def loss(number: int) -> Any:
        half = session.pick(8, 16 * 3).view(16, 3)
        rows = torch.cat((half, half), dim=1)
        scores = model(rows[:, :-1])[:, 2:]
        return functional.cross_entropy(scores.flatten(0, 1), rows[:, 3:].flatten())

    return Setup(adam(model, lr=3e-3), loss, clip=1.0)
