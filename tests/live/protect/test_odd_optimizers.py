"""Optimizers and wrappers with odd habits: observed without a trace, and protected or refused."""

import copy
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.user_loop import NAN, are_equal, take_step, watching, weights
from tests.live.protect.made_up import (
    assert_same,
    give_gradients,
    make_model,
    plain,
    protecting,
    train,
)
from torch import nn, optim

import trimtab
from trimtab.core.config import GateConfig
from trimtab.core.errors import ConfigError
from trimtab.live.optimizers import find_optimizers

BAD = {4: "nan gradient", 5: "inf loss", 9: "-inf gradient"}


class Odd(optim.Optimizer):
    """Subtracts gradients; subclasses keep books about it, gradients or not."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        rate = 0.1 * self.book()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                self.update(parameter, rate)

    def book(self) -> float:
        return 1.0

    def update(self, parameter: torch.Tensor, rate: float) -> None:
        assert parameter.grad is not None
        parameter.sub_(parameter.grad * rate)


class NeedsAClosure(Odd):
    """Cannot step without one."""

    @torch.no_grad()
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        closure()
        return super().step()


class CountsInLists(Odd):
    """Counts in containers of every kind, one in another."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.counts: dict[str, Any] = {"all": [0], "last": deque([0], maxlen=3), "seen": set()}

    def book(self) -> float:
        self.counts["all"][0] += 1
        number: int = self.counts["all"][0]
        self.counts["last"].append(number)
        self.counts["seen"].add(number)
        self.counts.setdefault("new", []).append(number)
        return 1.0 / number


class Schedule:
    """A helper object of an optimizer."""

    def __init__(self) -> None:
        self.time = 0
        self.warmth = torch.zeros(())


class HasAHelper(Odd):
    """Counts in an object of its own, with a number and a tensor."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.schedule = Schedule()

    def book(self) -> float:
        self.schedule.time += 1
        self.schedule.warmth.add_(0.1)
        return float(self.schedule.warmth) / self.schedule.time


class CountsInEveryState(Odd):
    """Counts the steps of each parameter, whether it has a gradient or not."""

    def book(self) -> float:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            state.setdefault("time", torch.tensor(0.0)).add_(1.0)
        return 1.0 / float(state["time"])


class MakesNewTensors(Odd):
    """Replaces the tensors that it holds instead of writing to them."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.average = torch.ones(1000)

    def book(self) -> float:
        self.average = self.average * 0.5 + 1.0
        return float(self.average[0])


class QuantizesItsState(Odd):
    """Moments in bytes, beside a scale, as 8-bit optimizers have them."""

    def update(self, parameter: torch.Tensor, rate: float) -> None:
        state = self.state[parameter]
        codes = state.setdefault("codes", torch.zeros(parameter.shape, dtype=torch.uint8))
        assert parameter.grad is not None
        codes.copy_((parameter.grad.tanh() * 100 + 128).to(torch.uint8))
        parameter.sub_((codes.float() - 128) * rate / 100)


class CallsTheStepOfItsBase(optim.SGD):
    """Counts before and after; torch runs hooks for both steps if there was a plain SGD before."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.05, momentum=0.5)
        self.num_calls = torch.zeros((), dtype=torch.long)

    def step(self, closure: Any = None) -> Any:
        self.num_calls += 1
        super().step(closure)
        self.num_calls += 1


PROTECTED = [
    CountsInLists,
    HasAHelper,
    CountsInEveryState,
    MakesNewTensors,
    QuantizesItsState,
    CallsTheStepOfItsBase,
    plain(optim.AdamW, capturable=False, foreach=False, amsgrad=True),
    plain(optim.ASGD),
    plain(optim.RAdam),
]


def books(optimizer: optim.Optimizer) -> Any:
    """All that it holds besides torch's own, in a form that can be compared."""
    own = {k: v for k, v in vars(optimizer).items() if not k.startswith("_")}
    for name in ("state", "param_groups", "defaults"):
        own.pop(name)
    helper = own.pop("schedule", None)
    return repr({**own, **({} if helper is None else vars(helper))})


@pytest.mark.parametrize("make", PROTECTED)
def test_a_discarded_step_is_as_if_it_had_never_been(make: Any, tmp_path: Path) -> None:
    protected = train(make, 12, tmp_path, faults=BAD, gate=GateConfig(promote=False))
    bare = train(make, 12, faults=BAD)
    assert_same(protected, bare)
    assert books(protected[1]) == books(bare[1])


def test_a_step_that_needs_a_closure_is_protected(tmp_path: Path) -> None:
    ends = []
    for folder in (tmp_path, None):
        with protecting(folder, NeedsAClosure) as run:

            def evaluate(number: int, run: Any = run) -> None:
                give_gradients(run.model, number, size=NAN if number == 5 else 1.0)
                run.guard.record(loss=1.0)

            for number in range(8):
                if folder is not None or number != 5:
                    run.optimizer.step(partial(evaluate, number))
        ends.append((run.model, run.optimizer))
    assert_same(*ends)


def test_sparse_gradients_are_discarded(tmp_path: Path) -> None:
    ends = []
    for enabled in (True, False):
        torch.manual_seed(0)
        model = nn.Embedding(20, 4, sparse=True)
        make = partial(optim.SparseAdam, lr=0.1)
        with watching(tmp_path, "protect", model=model, make=make, enabled=enabled) as run:
            for number in range(6):
                if enabled or number != 3:
                    loss = model(torch.tensor([number, number + 1])).square().sum()
                    loss = loss * (NAN if number == 3 else 1.0)
                    take_step(run.guard, run.optimizer, loss)
        ends.append(model.weight.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_a_step_that_calls_the_step_of_its_base_is_one_update(mode: str, tmp_path: Path) -> None:
    optim.SGD([nn.Parameter(torch.ones(1))])  # from here on torch runs hooks for both
    with protecting(tmp_path, CallsTheStepOfItsBase, mode) as run:
        for number in range(6):
            run.take(number, NAN if number == 3 and mode == "protect" else 1.0)
            assert all(parameter.grad is not None for parameter in run.model.parameters())
        assert run.guard._monitor.sync.num_exchanges == 6
    assert run.optimizer.num_calls == (10 if mode == "protect" else 12)


# Wrappers.


class Sam(optim.Optimizer):
    """SAM as it is usually written; `step` is called on the optimizer inside only."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05, "lr": 0.1})
        self.base_optimizer = optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["before"] = parameter.clone()
            parameter.add_(parameter.grad, alpha=0.05)

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["before"])
        self.base_optimizer.step()


class Averages(optim.Optimizer):
    """Lookahead with its optimizers in a list."""

    def __init__(self, parameters: Any) -> None:
        self.fast = [optim.RMSprop(parameters, lr=0.01)]
        super().__init__(self.fast[0].param_groups, {})
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.fast[0].step()
        for slow, parameter in zip(self.slow, self.param_groups[0]["params"], strict=True):
            slow.lerp_(parameter, 0.5)
            parameter.copy_(slow)


class Around:
    """Not an optimizer itself, around one in a dict that knows it."""

    def __init__(self, parameters: Any) -> None:
        self.by_name = {"main": Averages(parameters)}
        self.by_name["main"].owner = self  # type: ignore[attr-defined]

    def step(self) -> None:
        self.by_name["main"].step()


class WithHelp(optim.Optimizer):
    """Moves the first parameter itself and leaves the others to AdamW, as Muon does."""

    def __init__(self, parameters: Any) -> None:
        first, *others = parameters
        self.adamw = optim.AdamW(others, lr=0.01)
        super().__init__([first, *others], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        first = self.param_groups[0]["params"][0]
        first.sub_(first.grad, alpha=0.1)
        self.adamw.step()


@pytest.mark.parametrize("make", [Sam, Averages, Around, WithHelp])
def test_wrappers_are_refused_where_steps_are_discarded(make: Any, tmp_path: Path) -> None:
    model = make_model()
    optimizer = make(list(model.parameters()))
    for mode in ("protect", "recover"):
        with pytest.raises(ConfigError, match="wraps an optimizer and may move the weights itself"):
            trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode)


@pytest.mark.parametrize("make", [Sam, Averages, Around, WithHelp])
def test_every_update_of_a_wrapper_is_observed(make: Any, tmp_path: Path) -> None:
    ends = []
    for folder in (tmp_path, None):
        with protecting(folder, make, "observe") as run:
            for number in range(6):
                give_gradients(run.model, number)
                run.guard.record(loss=1.0)
                if make is Sam:
                    run.optimizer.first_step()
                    give_gradients(run.model, number + 50)
                    run.optimizer.second_step()
                else:
                    run.optimizer.step()
            assert folder is None or run.guard._monitor.sync.num_exchanges == 6
        ends.append(weights(run.model))
    assert are_equal(*ends)


def test_what_only_passes_steps_on_is_unwrapped() -> None:
    model = make_model()
    inner = optim.AdamW(model.parameters())
    known = type("Known", (), {"step": lambda self: None, "__module__": "lightning.core"})
    wrapper = known()
    wrapper._optimizer = inner
    scheduler = optim.lr_scheduler.LambdaLR(inner, lambda step: 1.0)
    given: list[Any] = [inner, wrapper, scheduler, {"a": inner}, [wrapper, (inner,)]]
    assert all(find_optimizers(one, is_protected=True) == (inner,) for one in given)
    own = type("Own", (known,), {"step": lambda self: None, "__module__": "mine"})()
    own._optimizer = inner
    with pytest.raises(ConfigError, match="Own wraps"):
        find_optimizers(own, is_protected=True)


def test_torchs_own_wrappers_are_watched_themselves() -> None:
    inner = optim.AdamW(make_model().parameters())
    zero = copy.copy(inner)
    names = {"__module__": "torch.distributed.optim.zero_redundancy_optimizer"}
    zero.__class__ = type("ZeroRedundancyOptimizer", (optim.AdamW,), names)
    zero.optim = inner  # type: ignore[attr-defined]
    assert find_optimizers(zero, is_protected=True) == (zero,)
