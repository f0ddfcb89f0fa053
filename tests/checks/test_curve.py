"""The simulated learning rate against torch's own schedulers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from trimtab.checks.plan import MAX_POINTS, Shape, TrainingPlan

STEPS, WARMUP, LR = 200, 20, 3e-4


def rates(make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]) -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=LR)
    scheduler = make(optimizer)
    seen = []
    for _ in range(STEPS):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def plan_of(schedule: Shape, **settings: Any) -> TrainingPlan:
    return TrainingPlan(
        steps=STEPS, lr=LR, schedule=schedule, warmup_steps=WARMUP, final_lr=LR / 10, **settings
    )


@pytest.mark.parametrize(
    ("schedule", "decay"),
    [
        (Shape.COSINE, lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS - WARMUP, LR / 10)),
        (Shape.LINEAR, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, STEPS - WARMUP)),
        (Shape.CONSTANT, lambda o: lr_scheduler.ConstantLR(o, 1.0, 1)),
    ],
)
def test_a_schedule_is_what_torch_makes_of_it(
    schedule: Shape, decay: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
) -> None:
    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        warmup = lr_scheduler.LinearLR(optimizer, 1 / WARMUP, 1.0, WARMUP - 1)
        return lr_scheduler.SequentialLR(optimizer, [warmup, decay(optimizer)], [WARMUP])

    curve = plan_of(schedule).curve
    assert curve is not None
    np.testing.assert_allclose(curve.lr, rates(make), rtol=1e-6)


def test_restarts_are_what_torch_makes_of_them() -> None:
    curve = TrainingPlan(
        steps=STEPS, lr=LR, schedule=Shape.COSINE_RESTARTS, warmup_steps=0, cycles=4.0, final_lr=0.0
    ).curve
    assert curve is not None
    real = rates(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, STEPS // 4))
    np.testing.assert_allclose(curve.lr, real, atol=1e-9)


def test_a_decay_may_begin_late_and_end_early() -> None:
    curve = plan_of(Shape.LINEAR, decay_start=100, decay_end=150).curve
    assert curve is not None
    np.testing.assert_allclose(curve.lr[WARMUP:100], LR)
    assert curve.lr[125] == pytest.approx(LR * 0.55)
    np.testing.assert_allclose(curve.lr[150:], LR / 10)


def test_a_long_run_is_simulated_at_fewer_points() -> None:
    curve = TrainingPlan(
        steps=50_000_000, lr=LR, schedule=Shape.COSINE, warmup_steps=2000, final_lr=0.0
    ).curve
    assert curve is not None
    assert len(curve.lr) == MAX_POINTS
    assert curve.at(25_001_000) == pytest.approx(LR / 2, rel=1e-3)


@pytest.mark.parametrize("known", [{}, {"steps": 10}, {"schedule": Shape.COSINE, "steps": 10}])
def test_no_curve_without_a_schedule(known: dict[str, object]) -> None:
    assert TrainingPlan(**known).curve is None  # type: ignore[arg-type]
