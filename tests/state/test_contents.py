"""What an optimizer or a model holds is put back; what belongs to others is left alone."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from trimtab.state.contents import SMALL_ELEMENTS, Contents


class Own(optim.SGD):
    """Holds whatever a test gives it."""

    def __init__(self, **held: Any) -> None:
        super().__init__([nn.Parameter(torch.ones(2))], lr=0.1)
        vars(self).update(held)


class Trainer:
    """Has a model, so it is no helper of an optimizer."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1)
        self.queue = [1]


def test_generators_are_put_back() -> None:
    dice: list[Any] = [torch.Generator().manual_seed(0), np.random.default_rng(0), random.Random(0)]
    optimizer = Own(dice=dice)
    contents = Contents(optimizer, optim.Optimizer)

    def draw() -> list[float]:
        drawn = torch.rand(1, generator=dice[0])
        return [float(drawn), dice[1].random(), dice[2].random()]

    first = draw()
    assert contents.restore() == ["dice", "dice", "dice"]
    assert draw() == first


def test_a_trainer_is_left_alone() -> None:
    trainer = Trainer()
    contents = Contents(Own(trainer=trainer), optim.Optimizer)
    trainer.queue.append(2)
    assert contents.restore() == []
    assert trainer.queue == [1, 2]


def test_large_tensors_are_named_and_not_copied() -> None:
    large, small = torch.zeros(SMALL_ELEMENTS + 1), torch.zeros(SMALL_ELEMENTS)
    optimizer = Own(large=large, small={"of": [small]})
    weights = optimizer.param_groups[0]["params"]
    contents = Contents(optimizer, optim.Optimizer, without=weights)
    assert [tensor is small for tensor in contents.small_tensors] == [True]
    large += 1
    small += 1
    assert sorted(contents.restore()) == ["large", "small.of"]
    assert large.tolist() == [1.0] * (SMALL_ELEMENTS + 1)
    assert small.tolist() == [0.0] * SMALL_ELEMENTS


def test_no_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one would wait for the device, and a state has parameters as keys."""
    optimizer = Own()
    weight = optimizer.param_groups[0]["params"][0]
    optimizer.state[weight]["step"] = torch.ones(())
    for name in ("__repr__", "__eq__", "__bool__", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a tensor is read"))
    contents = Contents(optimizer, optim.Optimizer, without=[weight])
    optimizer.state[weight]["step"] += 1
    optimizer.state[weight]["new"] = 1
    assert set(contents.restore()) == {"state.step", "state.new"}


def test_what_holds_itself_is_looked_at_once() -> None:
    held: dict[str, Any] = {"count": 1}
    held["held"] = held
    contents = Contents(Own(held=held), optim.Optimizer)
    held["count"] = 2
    assert contents.restore() == ["held.count"]
    assert held["count"] == 1
