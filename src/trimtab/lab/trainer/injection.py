"""Injection points: the places where a run can be changed from outside, one function each.

 next(loader) ------ before_step: anything between two steps; change_batches: the batches
 forward(batch) ---- change_output
 backward() -------- change_gradient: as it is computed, before averaging over ranks and clipping
 scheduler.step() -- scale_lr

Evaluations run the same forward pass without gradients and are never changed.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.lab.corpus.data import Batch, Loader
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.engines import Forward

ChangeBatch = Callable[[int, Batch], Batch]
"""Takes the step and its batch; returns the batch that the run receives."""


class _InjectedLoader:
    """A loader whose batches are changed on the way to the run; its position is unaffected."""

    def __init__(self, loader: Loader, step_of: Callable[[], int], change: ChangeBatch) -> None:
        self._loader = loader
        self._step_of = step_of
        self._change = change

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            yield self._change(self._step_of(), batch)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)


def current_step(run: Run) -> int:
    """The current step, from the scheduler: its count is saved in checkpoints and resumed."""
    return int(run.scheduler.last_epoch)


def change_batches(run: Run, change: ChangeBatch) -> Run:
    """Apply `change` to every micro-batch."""
    loader = _InjectedLoader(run.loader, lambda: current_step(run), change)
    return dataclasses.replace(run, loader=loader)


def before_step(run: Run, act: Callable[[int], None]) -> Run:
    """Call `act` once before every step, when the state is still that after the previous step."""
    seen: int | None = None

    def once(step: int, batch: Batch) -> Batch:
        nonlocal seen
        if step != seen:
            seen = step
            act(step)
        return batch

    return change_batches(run, once)


def change_output(run: Run, forward: Forward, change: Callable[[int, Output], Output]) -> None:
    """Apply `change` to the output of the forward pass, in training only."""

    def hook(module: nn.Module, inputs: Any, output: Output) -> Output:
        return change(current_step(run), output) if torch.is_grad_enabled() else output

    cast(nn.Module, forward).register_forward_hook(hook)


def change_gradient(
    run: Run, parameter: nn.Parameter, change: Callable[[int, Tensor], Tensor]
) -> None:
    """Apply `change` to the gradient of a parameter on this rank, as it is computed."""
    parameter.register_hook(lambda gradient: change(current_step(run), gradient))


def scale_lr(run: Run, factor: Callable[[int], float]) -> None:
    """Multiply the learning rate by `factor(step)` from the current step on."""
    run.scheduler.lr_lambdas = [
        _scaled(planned, factor) for planned in cast(list[Any], run.scheduler.lr_lambdas)
    ]
    rates = zip(run.scheduler.base_lrs, run.scheduler.lr_lambdas, strict=True)
    for group, (base, planned) in zip(run.optimizer.param_groups, rates, strict=True):
        group["lr"] = base * planned(current_step(run))


def _scaled(
    planned: Callable[[int], float], factor: Callable[[int], float]
) -> Callable[[int], float]:
    return lambda step: planned(step) * factor(step)
