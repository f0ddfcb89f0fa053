"""Training on made-up gradients: no forward pass, so a thousand steps take a second."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.kit.user_loop import NAN, Run, are_equal, watching, weights
from torch import nn
from torch.optim import Optimizer

from trimtab.core.config import Config, GateConfig

INF = float("inf")

FAULTS = ("nan gradient", "inf gradient", "-inf gradient", "nan loss", "inf loss")

Make = Callable[[list[nn.Parameter]], Optimizer]


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Linear(5, 4, bias=False))
    generator = torch.Generator().manual_seed(0)  # ranks may be threads, which share torch's own
    for parameter in model.parameters():
        values = torch.randn(parameter.shape, generator=generator, device="cpu")
        parameter.data = (0.3 * values).to(parameter.device)
    return model.to(dtype)


def give_gradients(model: nn.Module, number: int, size: float = 1.0) -> None:
    """The gradients of the step with this number, always the same."""
    generator = torch.Generator().manual_seed(1000 + number)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator) * size
        parameter.grad = noise.to(parameter.dtype)


def break_step(model: nn.Module, fault: str, number: int) -> float:
    """Put a fault into the gradients; returns the loss to record."""
    kind, what = fault.split()
    value = {"nan": NAN, "inf": INF, "-inf": -INF}[kind]
    if what == "loss":
        return value
    parameters = list(model.parameters())
    gradient = parameters[number % len(parameters)].grad
    assert gradient is not None
    gradient.view(-1)[number % gradient.numel()] = value
    return 1.0


@dataclass
class MadeUpRun(Run):
    """A loop on made-up gradients."""

    def take(
        self, number: int, loss: float = 1.0, *, size: float = 1.0, clip: float | None = None
    ) -> bool:
        """Take the step with this number; return whether it has moved the weights."""
        give_gradients(self.model, number, size)
        self.guard.record(loss=loss)
        if clip is not None:
            self.guard.clip_grad_norm_(clip)
        return self.moves(self.optimizer.step)

    def moves(self, update: Callable[..., object], *args: Any) -> bool:
        """Call a function; return whether it has moved the weights."""
        before = weights(self.model)
        update(*args)
        return not are_equal(before, weights(self.model))


@contextmanager
def protecting(
    run_dir: Path | None,
    make: Make,
    mode: str = "protect",
    *,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Iterator[MadeUpRun]:
    """Watch the model on made-up gradients, unless there is no run directory."""
    with watching(
        run_dir or "unused",
        mode,
        model=make_model(dtype),
        make=lambda parameters: make(list(parameters)),
        enabled=run_dir is not None,
        **options,
    ) as run:
        yield MadeUpRun(run.guard, run.model, run.optimizer)


def train(
    make: Make,
    steps: int,
    run_dir: Path | None = None,
    *,
    faults: Mapping[int, str] | None = None,
    dtype: torch.dtype = torch.float32,
    gate: GateConfig | None = None,
    on_step: Callable[[int, Any, Optimizer], None] = lambda number, guard, optimizer: None,
) -> tuple[nn.Module, Optimizer]:
    """Train on made-up gradients, protected if there is a run directory.

    Without one the faulty steps are left out: that is what a protected run must be equal to.
    """
    faults = faults or {}
    with protecting(run_dir, make, dtype=dtype, config=Config(gate=gate or GateConfig())) as run:
        for number in range(steps):
            if run_dir is None and number in faults:
                continue
            give_gradients(run.model, number)
            loss = break_step(run.model, faults[number], number) if number in faults else 1.0
            run.guard.record(loss=loss)
            on_step(number, run.guard, run.optimizer)
            run.optimizer.step()
            run.optimizer.zero_grad()
    return run.model, run.optimizer


def assert_same(
    one: tuple[nn.Module, Optimizer], other: tuple[nn.Module, Optimizer], what: object = ""
) -> None:
    """Parameters, moments and step counters are the same to the last bit."""
    for a, b in zip(one[0].parameters(), other[0].parameters(), strict=True):
        assert torch.isfinite(a).all(), what
        assert torch.equal(a.detach().view(torch.uint8), b.detach().view(torch.uint8)), what
    states = [pair[1].state_dict()["state"] for pair in (one, other)]
    assert states[0].keys() == states[1].keys(), what
    for key, state in states[0].items():
        assert state.keys() == states[1][key].keys(), what
        for name, value in state.items():
            found = states[1][key][name]
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, found), (what, key, name)
            else:
                assert value == found, (what, key, name)


def fused(kind: type[Optimizer], **options: Any) -> Make:
    return lambda parameters: kind(parameters, fused=True, **options)  # type: ignore[call-arg]


def plain(kind: type[Optimizer], **options: Any) -> Make:
    return lambda parameters: kind(parameters, **options)
