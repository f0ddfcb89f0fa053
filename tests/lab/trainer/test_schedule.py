"""The learning rate over a run."""

import itertools

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

import torch

from trimtab.lab.model.optimizer import lr_factor, make_schedule


def test_the_lr_rises_linearly_falls_as_a_cosine_and_ends_at_a_tenth() -> None:
    factors = [lr_factor(step, warmup=10, steps=111) for step in range(111)]
    assert factors[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert factors[10] == 1.0
    assert factors[60] == pytest.approx(0.55)
    assert factors[110] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))


@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (1, 1), (0, 2), (5, 5)])
def test_short_runs_have_a_rate_too(warmup: int, steps: int) -> None:
    rates = [lr_factor(step, warmup=warmup, steps=steps) for step in range(steps + 1)]
    assert all(0 < rate <= 1 for rate in rates)


def test_the_scheduler_gives_each_step_its_rate_and_keeps_groups_apart() -> None:
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in (1.0, 0.25)]
    optimizer = torch.optim.SGD(groups)
    scheduler = make_schedule(optimizer, warmup=4, steps=40)
    for step in range(40):
        factor = lr_factor(step, warmup=4, steps=40)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == [factor, 0.25 * factor]
        optimizer.step()
        scheduler.step()
