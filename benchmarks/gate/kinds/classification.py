"""Classifiers and metric learning: a loss near 0 with a long tail, steps without any gradient."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gate.kinds.registry import add
from benchmarks.gate.session import Session, adamw, mlp

CLASSES, FEATURES = 10, 32


def clusters(
    seed: int, count: int, classes: int = CLASSES, noise: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Points around centres, their labels (some wrong), and the centres."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, FEATURES, generator=generator)
    labels = torch.randint(0, classes, (count,), generator=generator)
    points = centres[labels] + 0.9 * torch.randn(count, FEATURES, generator=generator)
    is_wrong = torch.rand(count, generator=generator) < noise
    others = torch.randint(0, classes, (count,), generator=generator)
    return points, torch.where(is_wrong, others, labels), centres


def fresh(centres: Tensor, count: int = 4000) -> tuple[Tensor, Tensor]:
    """Test points with true labels."""
    generator = torch.Generator().manual_seed(777)
    labels = torch.randint(0, len(centres), (count,), generator=generator)
    return centres[labels] + 0.9 * torch.randn(count, FEATURES, generator=generator), labels


def classifier(session: Session, batch: int, noise: float, steps: int = 5000) -> float:
    points, labels, centres = clusters(session.seed, 4000, noise=noise)
    model = mlp(FEATURES, CLASSES)
    optimizer = adamw(model)
    for _ in range(steps):
        rows = session.pick(len(points), batch)
        loss = functional.cross_entropy(model(points[rows]), labels[rows])
        session.step(optimizer, loss, clip=1.0)
    with torch.no_grad():
        test, truth = fresh(centres)
        return float((model(test).argmax(1) == truth).float().mean())


def triplet(session: Session) -> float:
    """Most triplets are far apart already: a loss and a gradient of exactly 0."""
    points, labels, _ = clusters(session.seed, 4000)
    of_class = [torch.where(labels == number)[0] for number in range(CLASSES)]
    model = mlp(FEATURES, 8)
    optimizer = adamw(model)
    loss = torch.zeros(())
    losses = []
    for _ in range(4000):
        ours = session.dice.integers(CLASSES, size=16)
        theirs = (ours + session.dice.integers(1, CLASSES, size=16)) % CLASSES
        rows = [
            int(of_class[number][session.dice.integers(len(of_class[number]))])
            for number in (*ours, *ours, *theirs)
        ]
        anchor, same, other = model(points[rows]).view(3, 16, -1)
        gap = (anchor - same).norm(dim=1) - (anchor - other).norm(dim=1)
        loss = functional.relu(gap + 0.5).mean()
        session.step(optimizer, loss, clip=1.0)
        losses.append(float(loss.detach()))
    return sum(losses[-500:]) / 500


def hinge(session: Session) -> float:
    points, labels, centres = clusters(session.seed, 4000, classes=2)
    signs = labels * 2.0 - 1.0
    model = mlp(FEATURES, 1)
    optimizer = adamw(model)
    for _ in range(5000):
        rows = session.pick(len(points), 16)
        loss = functional.relu(1 - signs[rows] * model(points[rows])[:, 0]).mean()
        session.step(optimizer, loss, clip=1.0)
    with torch.no_grad():
        test, truth = fresh(centres)
        return float(((model(test)[:, 0] > 0) == (truth > 0)).float().mean())


def contrastive(session: Session) -> float:
    points, _, _ = clusters(session.seed, 4000)
    model = mlp(FEATURES, 16)
    optimizer = adamw(model)
    losses = []
    for _ in range(4000):
        rows = points[session.pick(len(points), 32)]
        first, second = (
            functional.normalize(model(rows + 0.3 * session.normal(32, FEATURES)), dim=1)
            for _ in range(2)
        )
        loss = functional.cross_entropy(first @ second.T / 0.1, torch.arange(32))
        session.step(optimizer, loss, clip=1.0)
        losses.append(float(loss.detach()))
    return sum(losses[-500:]) / 500


def hard_mining(session: Session) -> float:
    """Every hundredth batch is the 16 points with the largest loss of 1,000."""
    points, labels, centres = clusters(session.seed, 4000, noise=0.005)
    model = mlp(FEATURES, CLASSES)
    optimizer = adamw(model)
    for number in range(5000):
        rows = session.pick(len(points), 16)
        if number % 100 == 99:
            rows = session.pick(len(points), 1000)
            with torch.no_grad():
                each = functional.cross_entropy(model(points[rows]), labels[rows], reduction="none")
            rows = rows[each.topk(16).indices]
        loss = functional.cross_entropy(model(points[rows]), labels[rows])
        session.step(optimizer, loss, clip=1.0)
    with torch.no_grad():
        test, truth = fresh(centres)
        return float((model(test).argmax(1) == truth).float().mean())


def new_class(session: Session) -> float:
    """A class that first appears at step 2,000, in 3 % of batches of one class each."""
    points, labels, centres = clusters(session.seed, 8000)
    of_class = [torch.where(labels == number)[0] for number in range(CLASSES)]
    model = mlp(FEATURES, CLASSES)
    optimizer = adamw(model)
    old = torch.where(labels < CLASSES - 1)[0]
    for number in range(5000):
        is_new = number >= 2000 and session.dice.random() < 0.03
        among = of_class[-1] if is_new else old
        rows = among[session.pick(len(among), 16)]
        loss = functional.cross_entropy(model(points[rows]), labels[rows])
        session.step(optimizer, loss)
    with torch.no_grad():
        test, truth = fresh(centres)
        is_new_class = truth == CLASSES - 1
        return float(functional.cross_entropy(model(test[is_new_class]), truth[is_new_class]))


_ACCURACY = "test accuracy"
for _batch, _noise in ((8, 0.0), (8, 0.02), (32, 0.01), (128, 0.01), (1, 0.0)):
    add(
        f"classifier, batch {_batch}, {_noise:.0%} wrong labels",
        _ACCURACY,
        partial(classifier, batch=_batch, noise=_noise),
        higher_is_better=True,
    )
add("triplet loss", "loss of the last 500 steps", triplet)
add("hinge loss", _ACCURACY, hinge, higher_is_better=True)
add("contrastive, 32 pairs", "loss of the last 500 steps", contrastive)
add("hard mining every 100 steps", _ACCURACY, hard_mining, higher_is_better=True)
add("class that appears at step 2,000", "test loss of that class", new_class)
