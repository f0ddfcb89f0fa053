"""Classifiers and regression: noise, rare classes, heavy tails, losses of exactly 0."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from benchmarks.zoo.kinds import (
    CLASSES,
    FEATURES,
    STEPS,
    Setup,
    adam,
    cnn,
    epochs,
    images,
    kind,
    points,
    sgd,
    xent,
)
from benchmarks.zoo.session import Session, mlp


def _vision(session: Session, optimizer: str, schedule: str, batch: int = 16) -> Setup:
    data, labels = images(session)
    model = cnn()
    made: torch.optim.Optimizer = adam(model) if optimizer == "adam" else sgd(model)
    rows = epochs(session, len(data), batch)
    plans: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(made, STEPS),
        "onecycle": lambda: lr_scheduler.OneCycleLR(made, 0.1, total_steps=STEPS + 1),
        "drops": lambda: lr_scheduler.MultiStepLR(made, [500, 1000], 0.1),
        "restarts": lambda: lr_scheduler.CosineAnnealingWarmRestarts(made, 400),
        "cyclic": lambda: lr_scheduler.CyclicLR(made, 1e-3, 0.1, step_size_up=200),
    }

    def loss(number: int) -> Any:
        chosen = rows(number)
        return xent(model, data[chosen], labels[chosen])

    return Setup(made, loss, schedule=plans[schedule]())


for _optimizer, _schedule in (
    ("sgd", "cosine"),
    ("sgd", "onecycle"),
    ("sgd", "drops"),
    ("sgd", "restarts"),
    ("sgd", "cyclic"),
    ("adam", "none"),
):
    kind(f"vision, {_optimizer}, {_schedule}")(
        lambda session, o=_optimizer, s=_schedule: _vision(session, o, s)  # type: ignore[misc]
    )


@kind("vision, mix-up in half of the batches")
def mixup(session: Session) -> Setup:
    data, labels = images(session)
    model = cnn()

    def loss(number: int) -> Any:
        rows, others = session.pick(len(data), 16), session.pick(len(data), 16)
        share = float(session.dice.beta(0.8, 0.8)) if session.dice.random() < 0.5 else 1.0
        scores = model(share * data[rows] + (1 - share) * data[others])
        return share * functional.cross_entropy(scores, labels[rows]) + (
            1 - share
        ) * functional.cross_entropy(scores, labels[others])

    return Setup(adam(model), loss)


@kind("fine-tuning, 8 epochs of a small set")
def finetune(session: Session) -> Setup:
    """The loss falls at each epoch's start, and its last batch is short."""
    data, labels = points(session, 1600, noise=0.15)
    model = mlp(FEATURES, CLASSES, width=256)
    optimizer = adam(model, lr=5e-4)
    rows = epochs(session, len(data), 8)
    schedule = lr_scheduler.LinearLR(optimizer, 1.0, 0.01, STEPS)

    def loss(number: int) -> Any:
        chosen = rows(number)
        return xent(model, data[chosen], labels[chosen])

    return Setup(optimizer, loss, clip=1.0, schedule=schedule)


@kind("LoRA on a frozen model")
def lora(session: Session) -> Setup:
    data, labels = points(session)
    frozen = nn.Linear(FEATURES, 64)
    down, up = nn.Linear(FEATURES, 4, bias=False), nn.Linear(4, 64, bias=False)
    nn.init.zeros_(up.weight)
    head = nn.Linear(64, CLASSES)
    for parameter in (*frozen.parameters(), *head.parameters()):
        parameter.requires_grad_(False)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 8)
        hidden = frozen(data[rows]) + 2 * up(down(data[rows]))
        return functional.cross_entropy(head(hidden.relu()), labels[rows])

    return Setup(adam(down, up, lr=2e-3), loss, clip=1.0)


@kind("imbalanced, focal loss")
def focal(session: Session) -> Setup:
    data = session.normal(8000, FEATURES)
    labels = (data[:, :4].sum(1) > 4.5).float()
    model = mlp(FEATURES, 1)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        scores = model(data[rows])[:, 0]
        each = functional.binary_cross_entropy_with_logits(scores, labels[rows], reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    return Setup(adam(model), loss)


@kind("segmentation, Dice loss")
def dice(session: Session) -> Setup:
    """Bounded by 1; small objects make noisy batches."""
    shapes = (session.uniform(400, 1, 8, 8) < 0.15).float()
    data = shapes + 0.4 * session.normal(400, 1, 8, 8)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid()
    )

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 8)
        found, wanted = model(data[rows]), shapes[rows]
        return 1 - 2 * (found * wanted).sum() / (found.sum() + wanted.sum() + 1)

    return Setup(adam(model), loss)


@kind("detection, three losses, objects vary")
def detection(session: Session) -> Setup:
    model = mlp(FEATURES, CLASSES + 5, width=96)
    truth = session.normal(FEATURES, 4)
    centres = session.normal(CLASSES, FEATURES)

    def loss(number: int) -> Any:
        count = 1 + int(session.dice.poisson(4))
        labels = session.pick(CLASSES, count)
        data = centres[labels] + 0.7 * session.normal(count, FEATURES)
        found = model(data)
        boxes = functional.smooth_l1_loss(found[:, :4], data @ truth / 6, reduction="sum")
        empty = model(session.normal(32, FEATURES))[:, 4]
        objects = functional.binary_cross_entropy_with_logits(
            torch.cat((found[:, 4], empty)), torch.cat((torch.ones(count), torch.zeros(32)))
        )
        return functional.cross_entropy(found[:, 5:], labels) + boxes / 4 + objects

    return Setup(sgd(model, lr=0.01), loss, clip=10.0)


@kind("adversarial training")
def adversarial(session: Session) -> Setup:
    data, labels = points(session)
    model = mlp(FEATURES, CLASSES)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        inputs = data[rows].clone().requires_grad_()
        (slope,) = torch.autograd.grad(xent(model, inputs, labels[rows]), inputs)
        return xent(model, (inputs + 0.2 * slope.sign()).detach(), labels[rows])

    return Setup(adam(model), loss)


@kind("tasks one after another")
def continual(session: Session) -> Setup:
    """Every 600 steps the labels mean something else: the loss jumps and falls again."""
    data, labels = points(session)
    model = mlp(FEATURES, CLASSES)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        return xent(model, data[rows], (labels[rows] + number // 500) % CLASSES)

    return Setup(adam(model), loss)


@kind("triplet loss")
def triplet(session: Session) -> Setup:
    """Most triplets are far apart already: a loss and a gradient of exactly 0."""
    data, labels = points(session, noise=0.0)
    of_class = [torch.where(labels == number)[0] for number in range(CLASSES)]
    model = mlp(FEATURES, 8)

    def loss(number: int) -> Any:
        ours = session.dice.integers(CLASSES, size=16)
        theirs = (ours + session.dice.integers(1, CLASSES, size=16)) % CLASSES
        rows = [
            int(of_class[one][session.dice.integers(len(of_class[one]))])
            for one in (*ours, *ours, *theirs)
        ]
        anchor, same, other = model(data[rows]).view(3, 16, -1)
        gap = (anchor - same).norm(dim=1) - (anchor - other).norm(dim=1)
        return functional.relu(gap + 0.5).mean()

    return Setup(adam(model), loss, clip=1.0)


def _rare_class(session: Session, share: float, batch: int, distance: float) -> Setup:
    """Few positives among the negatives: a batch that has one is unlike all others."""
    direction = session.normal(16)
    labels = (session.uniform(40_000) < share).float()
    data = session.normal(40_000, 16)
    data += 2 * distance * labels[:, None] * direction / direction.norm()
    model = mlp(16, 1)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), batch)
        scores = model(data[rows])[:, 0]
        return functional.binary_cross_entropy_with_logits(scores, labels[rows])

    return Setup(adam(model), loss)


for _share, _batch, _distance in ((0.002, 32, 1.2), (0.0005, 64, 1.2), (0.005, 16, 2.5)):
    kind(f"rare class, {_share:.2%} in batches of {_batch}")(
        lambda session, s=_share, b=_batch, d=_distance: _rare_class(session, s, b, d)  # type: ignore[misc]
    )


def _heavy_tails(session: Session, *, pareto: bool) -> Setup:
    """Targets with noise of infinite variance."""
    model = mlp(8, 1)
    lose = functional.smooth_l1_loss if pareto else functional.mse_loss

    def loss(number: int) -> Any:
        inputs = session.normal(16, 8)
        noise = session.dice.pareto(1.5, 16) if pareto else 0.3 * session.dice.standard_t(2, 16)
        return lose(model(inputs)[:, 0], inputs.sum(1) + torch.tensor(noise).float())

    return Setup(adam(model), loss, clip=1.0)


kind("regression, t(2) noise")(lambda session: _heavy_tails(session, pareto=False))
kind("regression, Pareto noise")(lambda session: _heavy_tails(session, pareto=True))


@kind("gradient descent at a large rate")
def edge_of_stability(session: Session) -> Setup:
    """Full batches at a large rate: the loss rises in bursts and comes back."""
    inputs, model = session.normal(256, 8), mlp(8, 1, width=32)
    targets = torch.sin(inputs.sum(1))

    def loss(number: int) -> Any:
        return functional.mse_loss(model(inputs)[:, 0], targets)

    return Setup(sgd(model, lr=0.35, momentum=0.0), loss)
