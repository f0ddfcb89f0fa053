"""Injection points: the places where a run can be changed from outside, one function each.

 next(loader) ------ change_batches
                     before_step: anything between two steps
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
from trimtab.lab.trainer.run_clock import RunClock

ChangeBatch = Callable[[int, Batch], Batch]
"""Takes the step and its batch; returns the batch that the run receives."""


class _InjectedLoader:
    """A loader whose batches are changed on the way to the run; its position is unaffected."""

    def __init__(self, loader: Loader, clock: RunClock, change: ChangeBatch) -> None:
        self._loader = loader
        self._clock = clock
        self._change = change

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            yield self._change(self._clock.time_of_batch(batch.position), batch)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)


def current_step(run: Run) -> int:
    """The current step, on the clock that the intervention goes by (`run_clock.py`)."""
    # The scheduler's count is saved in checkpoints and resumed.
    return run.clock.time(int(run.scheduler.last_epoch))


def change_batches(run: Run, change: ChangeBatch) -> Run:
    """Apply `change` to every micro-batch; a batch keeps its change when it is served again."""
    loader = _InjectedLoader(run.loader, run.clock, change)
    return dataclasses.replace(run, loader=loader)


def before_step(run: Run, act: Callable[[int], None]) -> Run:
    """Call `act` once before every step, when the state is still that after the previous step."""
    run.clock.on_step(act)
    return run


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
        _scaled(planned, factor, run.clock) for planned in cast(list[Any], run.scheduler.lr_lambdas)
    ]
    rates = zip(run.scheduler.base_lrs, run.scheduler.lr_lambdas, strict=True)
    for group, (base, planned) in zip(run.optimizer.param_groups, rates, strict=True):
        group["lr"] = base * planned(int(run.scheduler.last_epoch))


def _scaled(
    planned: Callable[[int], float], factor: Callable[[int], float], clock: RunClock
) -> Callable[[int], float]:
    return lambda step: planned(step) * factor(clock.time(step))
