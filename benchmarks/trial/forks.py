"""Runs whose first steps are the same: those are trained once, then the process is forked for each.

A fork goes on with the bits of everything, the guard's as well; only the thread that writes the
journal stays behind, so what was done is noted from the events themselves.
"""

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.recover.phases import Phase
from benchmarks.recover.worlds import Run, World

MAX_SECONDS = 300
"""A fork that takes longer has taken over a lock that nobody gives back; it is trained alone."""


class Fork:
    """A step at which a run goes on as several."""

    def __init__(self, step: int, changes: Sequence[Phase]) -> None:
        self.step = step
        self._changes = changes
        self.which = -1
        """Of the changes, the one of this process."""

    def split(self) -> Phase:
        """Return in a process for each the change that happens to it, one after the other; the
        process itself ends."""
        for which, change in enumerate(self._changes):
            pid = os.fork()
            if pid == 0:
                signal.alarm(MAX_SECONDS)
                self.which = which
                return change
            os.waitpid(pid, 0)
        os._exit(0)


def grow(step: int, changes: Sequence[Phase], train: Callable[[Fork], None]) -> None:
    """Let `train` train a run up to a step, and then go on with each change."""
    pid = os.fork()
    if pid == 0:
        try:
            train(Fork(step, changes))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def is_idle_before(change: Phase, world: World, step: int, begin: int) -> bool:
    """Return whether a change leaves a run as it is before a step."""
    torch.manual_seed(0)
    model = world.model()
    run = Run(world, model, world.optimizer(model.parameters()))
    run.memory |= {"onset": step, "rate": run.optimizer.param_groups[0]["lr"]}
    before = _facts(run)
    for number in range(begin, begin + step):
        run.memory.pop("lr", None)
        change(run, number)
        if _facts(run) != before:
            return False
    return not any(map(_holds_tensors, run.memory.values()))


def _facts(run: Run) -> list[Any]:
    groups = [{k: v for k, v in g.items() if k != "params"} for g in run.optimizer.param_groups]
    memory = run.memory
    loop = [memory.get("accumulate", 1), memory.get("sign", 1.0), memory.get("term", 0.0)]
    gradients = [memory.get("gradient factor", 1.0), memory.get("noise", 0.0)]
    modules = [(m.training, getattr(m, "p", None)) for m in run.model.modules()]
    weights = [(p.requires_grad, float(p.detach().double().sum())) for p in run.model.parameters()]
    return [repr(run.data), run.loss, repr(groups), loop, gradients, modules, weights]


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(_holds_tensors, value))
    return isinstance(value, torch.Tensor | torch.nn.Module)
