"""Rare classes: a batch that has one is unlike all others, and is what the run is for."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gate.kinds.registry import add
from benchmarks.gate.session import Session, adamw, mlp

FEATURES = 16


def rare_class(session: Session, share: float, batch: int, distance: float) -> float:
    """Few positives among the negatives; the quality is the area under the ROC curve."""
    direction = session.normal(FEATURES)
    direction = direction / direction.norm()

    def draw(count: int, positive: float) -> tuple[Tensor, Tensor]:
        labels = (session.uniform(count) < positive).float()
        shift = 2 * distance * labels[:, None] * direction
        return session.normal(count, FEATURES) + shift, labels

    points, labels = draw(40_000, share)
    model = mlp(FEATURES, 1)
    optimizer = adamw(model)
    for _ in range(5000):
        rows = session.pick(len(points), batch)
        scores = model(points[rows])[:, 0]
        loss = functional.binary_cross_entropy_with_logits(scores, labels[rows])
        session.step(optimizer, loss)
    with torch.no_grad():
        test, truth = draw(4000, 0.5)
        scores = model(test)[:, 0]
        return float((scores[truth == 1][:, None] > scores[truth == 0]).float().mean())


def long_tail(session: Session) -> float:
    """Class k is k times rarer than the first; the quality is the mean over classes."""
    classes = 30
    centres = 1.5 * session.normal(classes, FEATURES)
    odds = 1.0 / torch.arange(1, classes + 1).float() ** 1.5

    def draw(count: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        labels = torch.multinomial(weights, count, replacement=True, generator=session.generator)
        return centres[labels] + session.normal(count, FEATURES), labels

    model = mlp(FEATURES, classes)
    optimizer = adamw(model)
    for _ in range(5000):
        points, labels = draw(8, odds)
        loss = functional.cross_entropy(model(points), labels)
        session.step(optimizer, loss, clip=1.0)
    with torch.no_grad():
        points, labels = draw(6000, torch.ones(classes))
        return float((model(points).argmax(1) == labels).float().mean())


_AUC = "area under the ROC curve"
for _share, _batch, _distance in ((0.002, 32, 1.2), (0.0005, 64, 1.2), (0.005, 16, 2.5)):
    add(
        f"rare class, {_share:.2%} in batches of {_batch}",
        _AUC,
        partial(rare_class, share=_share, batch=_batch, distance=_distance),
        higher_is_better=True,
    )
add("30 classes, long tail, batch 8", "mean accuracy", long_tail, higher_is_better=True)
