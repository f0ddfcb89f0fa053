"""One flipped bit is found and told apart from what code writes."""

import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from trimtab.live.measure.time_budget import StepClock, TimeBudget
from trimtab.live.recover import memory_watch
from trimtab.live.recover.memory_watch import (
    MIN_ELEMENTS,
    MemoryWatch,
    StateList,
    state_tensors,
)
from trimtab.live.recover.rules import MEMORY_FIELDS

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


class Watch:
    """A watch over one optimizer: where the device is the host, and as on an accelerator."""

    def __init__(self, optimizer: optim.Optimizer, budget: TimeBudget | None = None) -> None:
        self.state = StateList(optimizer)
        budget = budget or TimeBudget(StepClock(), 1.0)
        self.watches = [MemoryWatch(CPU, budget, is_on_host=is_host) for is_host in (True, False)]

    def after_update(self) -> None:
        for watch in self.watches:
            watch.after_update(self.state.fingerprint())

    def before_update(self) -> tuple[int, int, int]:
        """Return how many tensors have a flip, how many weights were written, and the index."""
        now = self.state.fingerprint()
        host, device = (watch.before_update(now) for watch in self.watches)
        found = [0.0] * len(MEMORY_FIELDS) if host is None else host.tolist()
        assert found == ([0.0] * len(MEMORY_FIELDS) if device is None else device.tolist())
        flipped, ranks, written, index = map(int, found)
        assert ranks == (flipped > 0)
        return flipped, written, index


@settings(max_examples=60, deadline=None)
@given(
    place=st.integers(0, 10**6),
    element=st.integers(0, 10**6),
    bit=st.integers(0, 63),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_every_high_bit_is_found_and_named(
    place: int, element: int, bit: int, dtype: torch.dtype
) -> None:
    """High: all of the exponent but its lowest bit, and the sign of a moment."""
    _, optimizer = make(dtype)
    watch = Watch(optimizer)
    watch.after_update()
    parts = state_tensors(optimizer)
    chosen = parts[place % len(parts)]
    is_weight = chosen.key is None
    if not is_weight and chosen.tensor.numel() < MIN_ELEMENTS:
        return
    flip(chosen.tensor, element, bit)
    flipped, written, found = watch.before_update()
    mantissa = {torch.float32: 23, torch.bfloat16: 7, torch.float64: 52}[chosen.tensor.dtype]
    width = 8 * chosen.tensor.element_size()
    is_high = mantissa < bit % width < width - (1 if is_weight else 0)
    if is_high and chosen.tensor.numel() >= MIN_ELEMENTS:
        assert (flipped, written) == (1, 0)
        assert parts[found - 1].tensor is chosen.tensor
    else:  # code may have done it; it does little harm
        assert (flipped, written) == (0, is_weight)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(64, 64), (96, 31), (1000, 7), (33, 129), (200, 200)]),
    bit=st.integers(24, 30),
    element=st.integers(0, 10**6),
    order=st.booleans(),
)
def test_a_flip_is_found_in_a_tensor_of_any_shape(
    shape: tuple[int, int], bit: int, element: int, order: bool
) -> None:
    """Also where the words of a tensor do not fill their square, and where it is transposed."""
    weight = nn.Parameter(torch.randn(shape).t() if order else torch.randn(shape))
    watch = Watch(optim.SGD([weight], lr=0.1))
    watch.after_update()
    memory = weight.detach().t() if order else weight.detach()
    flip(memory, element, bit)
    assert watch.before_update() == (1, 0, 1)


def test_nothing_is_found_where_nothing_happened() -> None:
    model, optimizer = make()
    watch = Watch(optimizer)
    for _ in range(20):
        watch.after_update()
        assert watch.before_update() == (0, 0, 0)
        step(model, optimizer)


PAST_TORCH: dict[str, Callable[[Any], Any]] = {
    "a row is zeroed": lambda model: model[0].weight.data[3].zero_(),
    "doubled": lambda model: model[0].weight.data.mul_(2),
    "negated": lambda model: model[0].weight.data.neg_(),
    "drawn anew": lambda model: model[2].weight.data.normal_(),
    "by numpy": lambda model: model[2].weight.detach().numpy().__imul__(0.9),
    "clamped": lambda model: model[0].weight.data.clamp_(-0.01, 0.01),
    # 24 elements by 2**23 each: as many as a sum of all would take for few bits.
    "a column is halved": lambda model: model[0].weight.data[:16, 4].mul_(0.5),
    "a column is doubled by numpy": lambda model: (
        model[2].weight.detach().numpy()[:4, 2].__imul__(2)
    ),
    "one is doubled": lambda model: model[0].weight.data[3, 3].mul_(2),
    "one is halved": lambda model: model[0].weight.data[3, 3].mul_(0.5),
    "one is negated": lambda model: model[0].weight.data[3, 3].mul_(-1),
    "one gate is set": lambda model: model[2].bias.data[1].mul_(4),
}
COUNTED_BY_TORCH: dict[str, Callable[[Any], Any]] = {
    "init": lambda model: nn.init.normal_(model[0].weight),
    "load": lambda model: model.load_state_dict({n: 2 * v for n, v in model.state_dict().items()}),
    "assign": lambda model: setattr(model[0].weight, "data", model[0].weight.data * 2),
    "prune": lambda model: model[0].weight.detach().mul_(model[0].weight.detach().abs() > 0.1),
}


@pytest.mark.parametrize(
    ("edit", "num_written"),
    [*((e, 1) for e in PAST_TORCH.values()), *((e, 0) for e in COUNTED_BY_TORCH.values())],
    ids=[*PAST_TORCH, *COUNTED_BY_TORCH],
)
def test_what_code_writes_is_no_flip(edit: Callable[[Any], Any], num_written: int) -> None:
    """What torch counts is not even compared."""
    model, optimizer = make()
    watch = Watch(optimizer)
    watch.after_update()
    edit(model)
    assert watch.before_update() == (0, num_written, 0)


@pytest.mark.parametrize("stride", [1, 2, 6, 64, 130])
def test_no_pattern_of_elements_is_one_bit(stride: int) -> None:
    """2**j elements times a power of two: together a power of two, and weighted by index often."""
    for count, factor in product([2**j for j in range(1, 9)], [0.25, 0.5, 2, 4, 16]):
        weight = nn.Parameter(torch.rand(256 * 130) + 1)
        watch = Watch(optim.SGD([weight], lr=0.1))
        watch.after_update()
        weight.data[1 : 1 + stride * count : stride] *= factor
        assert watch.before_update() == (0, 1, 0), (count, factor)


def test_a_tensor_that_code_writes_is_not_trusted_again() -> None:
    """A clamp of each step will one day change it by a power of two."""
    model: Any
    model, optimizer = make()
    watch = Watch(optimizer)
    watch.after_update()
    model[0].weight.data[3] = 0
    watch.before_update()
    watch.after_update()
    flip(next(model.parameters()), 5, 30)
    assert watch.before_update()[0] == 0


def test_a_large_state_is_watched_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "CHUNK_BYTES", 1)
    _, optimizer = make()
    watch = Watch(optimizer)
    watched = [part for part in state_tensors(optimizer) if part.tensor.numel() >= MIN_ELEMENTS]
    seen: set[int] = set()
    for _ in range(len(state_tensors(optimizer))):
        watch.after_update()
        flipped = list(watched)
        for part in flipped:
            flip(part.tensor, 0, 30)
        number, _, place = watch.before_update()
        assert number <= 1  # a bias is too small for proof
        seen |= {place} - {0}
        for part in flipped:
            flip(part.tensor, 0, 30)
    assert len(seen) == len(watched)


class FixedClock(StepClock):
    """A run whose steps take so long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


def share_of_state(monkeypatch: pytest.MonkeyPatch, step_seconds: float, speed: float) -> float:
    """Return the share of 1.5 GB that is summed in a step, where `speed` bytes take a second."""
    watch = MemoryWatch(CPU, TimeBudget(FixedClock(step_seconds), 0.003), is_on_host=True)
    num_pieces, size = 1500, 1 << 20
    watch._ends = [size * (1 + at) for at in range(num_pieces)]
    first = last = 0
    for _ in range(4):
        first, last = watch._choose()
        watch._stopwatch._seconds = (last - first) * size / speed
    return (last - first) / num_pieces


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [(0.001, 2 / 1500), (7.0, 0.021 * 2e9 / 2 / (1500 << 20)), (1000.0, 1.0)],
)
def test_the_share_of_a_state_follows_the_time_of_a_step(
    step_seconds: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sums within 0.3 %; at least 2 MB, at most everything."""
    found = share_of_state(monkeypatch, step_seconds, 2e9)
    assert found == pytest.approx(expected, abs=1 / 1500)


def test_every_piece_of_a_large_tensor_is_watched_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch._HostBits, "piece_bytes", 1 << 12)
    monkeypatch.setattr(memory_watch._DeviceBits, "piece_bytes", 1 << 12)
    monkeypatch.setattr(memory_watch, "CHUNK_BYTES", 1)
    monkeypatch.setattr(memory_watch, "COPIED_BYTES", 1 << 11)
    weight = nn.Parameter(torch.randn(100, 101))
    watch = Watch(optim.SGD([weight], lr=0.1))
    found = 0
    for _ in range(20):
        watch.after_update()
        flip(weight, 5000, 28)
        found += watch.before_update() == (1, 0, 1)
        flip(weight, 5000, 28)
    assert found == 2  # of ten pieces, each twice


def test_two_elements_in_two_pieces_are_no_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch._HostBits, "piece_bytes", 1 << 12)
    monkeypatch.setattr(memory_watch._DeviceBits, "piece_bytes", 1 << 12)
    weight = nn.Parameter(torch.randn(100, 101))
    watch = Watch(optim.SGD([weight], lr=0.1))
    watch.after_update()
    flip(weight, 10, 28)
    flip(weight, 9000, 28)
    assert watch.before_update() == (0, 1, 0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_host_and_device_find_the_same(seed: int) -> None:
    """Flips of any bit, and edits of any kind, in tensors of any layout; `Watch` compares."""
    random = np.random.default_rng(seed)
    shapes = [(7,), (64, 3), (130, 70), (300, 301), (40, 3, 5, 5), (2, 70000)]
    dtype = [torch.float32, torch.bfloat16, torch.float64][seed % 3]
    weights = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    weights[4] = nn.Parameter(weights[4].data.to(memory_format=torch.channels_last))
    weights.append(nn.Parameter(torch.randn(90, 80, dtype=dtype)[:, :70]))
    watch = Watch(optim.SGD(weights, lr=0.1))
    for _ in range(3):
        watch.after_update()
        for _ in range(random.integers(0, 4)):
            weight = weights[random.integers(len(weights))].data
            row = weight[int(random.integers(len(weight)))]
            element = row if row.dim() == 0 else row.reshape(-1)[:1]
            kind = random.integers(4)
            if kind == 0 and weight.is_contiguous():
                flip(weight, int(random.integers(10**6)), int(random.integers(64)))
            elif kind == 1:
                element *= float(random.choice([0.25, 0.5, 2.0, 4.0, -1.0]))
            elif kind == 2:
                row *= 2
            else:
                with torch.no_grad():
                    weights[0].add_(1.0)
        watch.before_update()


def test_memory_is_not_given_away_while_its_address_is_read() -> None:
    """A shorter tensor may get the address, and would be read past its end."""
    memory = np.zeros(1000, np.float32)
    is_there = weakref.ref(memory)
    weight = nn.Parameter(torch.from_numpy(memory))
    del memory
    state = StateList(optim.SGD([weight], lr=0.1))
    watch = MemoryWatch(CPU, TimeBudget(StepClock(), 1.0), is_on_host=True)
    watch.after_update(state.fingerprint())
    weight.data = torch.zeros(100)
    assert is_there() is not None
    assert watch.before_update(state.fingerprint()) is None
    watch.after_update(state.fingerprint())
    assert is_there() is None


def test_memory_that_was_made_shorter_in_its_place_is_not_read() -> None:
    weight = nn.Parameter(torch.zeros(1000))
    state = StateList(optim.SGD([weight], lr=0.1))
    watch = MemoryWatch(CPU, TimeBudget(StepClock(), 1.0), is_on_host=True)
    watch.after_update(state.fingerprint())
    before = state.fingerprint()
    weight.untyped_storage().resize_(8)
    assert watch.before_update(before) is None  # its address and version as they were
