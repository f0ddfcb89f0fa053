"""Gradients are known by identity and version, and their norm counts each of them once."""

import gc

import pytest
import torch
from torch import nn

from trimtab.live.arithmetic import HostMath
from trimtab.live.measure.step_meter import (
    MANY_TENSORS,
    Change,
    GradientNorm,
    compare,
    mark,
    without,
)


def parameters_with_gradients(count: int = 3, size: int = 4) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    found = [nn.Parameter(torch.zeros(size)) for _ in range(count)]
    for parameter in found:
        parameter.grad = torch.randn(size, generator=generator)
    return found


def test_marks_tell_what_has_become_of_gradients() -> None:
    parameters = parameters_with_gradients()
    before = mark(parameters)
    assert compare(before, mark(parameters)) is Change.NONE
    assert parameters[1].grad is not None
    parameters[1].grad.add_(1.0)
    assert compare(before, mark(parameters)) is Change.GREW
    parameters[2].grad = None
    before = mark(parameters)
    parameters[2].grad = torch.ones(4)  # a first gradient
    assert compare(before, mark(parameters)) is Change.GREW
    used = mark(parameters)
    parameters[0].grad = torch.ones(4)
    fresh = without(mark(parameters), used)
    assert [version is None for version in fresh.versions] == [False, True, True]


@pytest.mark.parametrize("again", [False, True])
def test_cleared_gradients_are_replaced_even_if_new_ones_lie_in_their_place(again: bool) -> None:
    parameters = parameters_with_gradients()
    before = mark(parameters)
    for parameter in parameters:
        parameter.grad = None
    gc.collect()
    assert before.are_gone()  # a mark keeps no gradient alive
    if again:
        for parameter in parameters:
            parameter.grad = torch.ones(4)
    assert compare(before, mark(parameters)) is Change.REPLACED


class TestNorm:
    def squares(self, parameters: list[nn.Parameter], copies: list[float] | None = None) -> float:
        norm = GradientNorm(HostMath())
        if copies is not None:
            norm.set_copies(parameters, copies)
        found = norm.squares([torch.optim.SGD(parameters, lr=0.1)])
        assert found is not None
        return float(found)

    def true(self, parameters: list[nn.Parameter]) -> list[float]:
        return [float(p.grad.double().square().sum()) for p in parameters if p.grad is not None]

    @pytest.mark.parametrize("count", [3, MANY_TENSORS + 1])
    def test_many_small_tensors_have_the_norm_of_each(self, count: int) -> None:
        parameters = parameters_with_gradients(count)
        assert self.squares(parameters) == pytest.approx(sum(self.true(parameters)), rel=1e-5)

    def test_each_part_counts_by_the_ranks_that_hold_it(self) -> None:
        parameters = parameters_with_gradients()
        one, two, three = self.true(parameters)
        found = self.squares(parameters, [2.0, 1.0, 4.0])
        assert found == pytest.approx(one / 2 + two + three / 4, rel=1e-5)

    def test_a_parameter_that_was_added_is_in_it(self) -> None:
        parameters = parameters_with_gradients()
        optimizer = torch.optim.SGD(parameters[:1], lr=0.1)
        norm = GradientNorm(HostMath())
        norm.set_copies(parameters[:1], [1.0])
        optimizer.add_param_group({"params": parameters[1:]})
        found = norm.squares([optimizer])
        assert found is not None
        assert float(found) == pytest.approx(sum(self.true(parameters)), rel=1e-5)

    def test_sparse_and_complex_gradients_are_in_it(self) -> None:
        embedding = nn.Embedding(10, 4, sparse=True)
        embedding(torch.tensor([1, 1, 2])).sum().backward()
        weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        weight.grad = torch.full((3,), 1 + 2j)
        found = self.squares([embedding.weight, weight])  # type: ignore[list-item]
        assert found == pytest.approx(4 * (2.0**2 + 1.0) + 3 * 5.0)

    def test_without_gradients_there_is_none(self) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        assert GradientNorm(HostMath()).squares([optimizer]) is None
