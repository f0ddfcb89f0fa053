"""One flipped bit is found and told apart from what code writes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from trimtab.live.recover import memory_watch
from trimtab.live.recover.memory_watch import HIGH_BITS, MemoryWatch, state_tensors

CPU = torch.device("cpu")
INTEGERS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def make(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5)).to(dtype)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: optim.Optimizer) -> None:
    dtype = next(model.parameters()).dtype
    optimizer.zero_grad()
    model(torch.randn(4, 16, dtype=dtype)).square().mean().backward()
    optimizer.step()


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit as hardware does: torch does not count it."""
    size = tensor.element_size()
    whole = tensor.detach().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    numbers = whole.numpy().reshape(-1).view(INTEGERS[size])
    numbers[element % len(numbers)] ^= INTEGERS[size](1 << (bit % (8 * size)))


@settings(max_examples=60, deadline=None)
@given(
    place=st.integers(0, 10**6),
    element=st.integers(0, 10**6),
    bit=st.integers(0, 63),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_every_single_bit_is_found_and_named(
    place: int, element: int, bit: int, dtype: torch.dtype
) -> None:
    _, optimizer = make(dtype)
    watch = MemoryWatch(optimizer, CPU)
    watch.after_update()
    parts = state_tensors(optimizer)
    chosen = parts[place % len(parts)]
    if chosen.tensor.numel() == 1:  # the step count of Adam: code may double a single number
        return
    flip(chosen.tensor, element, bit)
    flipped, written, found = watch.before_update().tolist()
    mantissa = {torch.float32: 23, torch.bfloat16: 7, torch.float64: 52}[chosen.tensor.dtype]
    if bit % (8 * chosen.tensor.element_size()) < mantissa - HIGH_BITS:
        # In a weight it may be a clamp; it does little harm.
        assert (flipped, written) == (0, chosen.key is None)
    else:
        assert (flipped, written) == (1, 0)
        assert parts[int(found) - 1].tensor is chosen.tensor


def test_nothing_is_found_where_nothing_happened() -> None:
    model, optimizer = make()
    watch = MemoryWatch(optimizer, CPU)
    for _ in range(20):
        watch.after_update()
        assert watch.before_update().tolist() == [0, 0, 0]
        step(model, optimizer)


def zero_a_row(model: Any) -> None:
    model[0].weight.data[3] = 0


def double(model: Any) -> None:
    model[0].weight.data.mul_(2)


def negate(model: Any) -> None:
    model[0].weight.data.neg_()


def normal(model: Any) -> None:
    model[2].weight.data.normal_()


def through_numpy(model: Any) -> None:
    model[2].weight.detach().numpy()[:] *= 0.9


def clamp(model: Any) -> None:
    model[0].weight.data.clamp_(-0.01, 0.01)


@pytest.mark.parametrize("edit", [zero_a_row, double, negate, normal, through_numpy, clamp])
def test_what_code_writes_behind_torch_is_no_flip(edit: Callable[[nn.Module], None]) -> None:
    model, optimizer = make()
    watch = MemoryWatch(optimizer, CPU)
    watch.after_update()
    edit(model)
    flipped, written, _ = watch.before_update().tolist()
    assert (flipped, written) == (0, 1)


def init(model: Any) -> None:
    nn.init.normal_(model[0].weight)


def load(model: Any) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


def assign(model: Any) -> None:
    model[0].weight.data = model[0].weight.data * 2


def prune(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.mul_(model[0].weight.abs() > 0.1)


@pytest.mark.parametrize("edit", [init, load, assign, prune])
def test_what_torch_counts_is_not_even_compared(edit: Callable[[nn.Module], None]) -> None:
    model, optimizer = make()
    watch = MemoryWatch(optimizer, CPU)
    watch.after_update()
    edit(model)
    assert watch.before_update().tolist() == [0, 0, 0]


def test_a_tensor_that_code_writes_is_not_trusted_again() -> None:
    """A clamp of each step will one day change it by a power of two."""
    model, optimizer = make()
    watch = MemoryWatch(optimizer, CPU)
    watch.after_update()
    zero_a_row(model)
    watch.before_update()
    watch.after_update()
    flip(next(model.parameters()), 5, 30)
    assert watch.before_update().tolist()[0] == 0


def test_a_large_state_is_watched_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "SHARE_BYTES", 1)
    monkeypatch.setattr(memory_watch, "SHARES", 10**9)
    _, optimizer = make()
    watch = MemoryWatch(optimizer, CPU)
    watched = [part for part in state_tensors(optimizer) if part.tensor.numel() > 1]
    seen = set()
    for _ in range(len(watched)):
        watch.after_update()
        flipped = list(watched)
        for part in flipped:
            flip(part.tensor, 0, 30)
        number, _, place = watch.before_update().tolist()
        assert number == 1
        seen.add(place)
        for part in flipped:
            flip(part.tensor, 0, 30)
    assert len(seen) == len(watched)
