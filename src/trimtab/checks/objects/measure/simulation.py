"""The real scheduler, run to its last step without training, and resumed half-way."""

import copy
import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.rule import NotMeasured
from trimtab.core.block import FloatArray

MAX_SECONDS = 20.0
"""A scheduler takes some 10 microseconds a step; a run of a million steps fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The learning rates of the run, as the scheduler sets them."""

    rates: FloatArray
    """Of each step (rows) and group (columns), in the order of the optimizers."""
    steps: int
    """Steps of the whole run."""
    is_whole: bool
    """False if the run is too long to be simulated to its end."""
    resumed_at: int
    resumed: FloatArray
    """Rates of the next steps after the state was saved and loaded there."""

    def peaks(self, inputs: Inputs) -> list[list[float]]:
        """The highest rate of each group of each optimizer."""
        highest = iter(self.rates.max(axis=0).tolist())
        return [[next(highest) for _ in o.param_groups] for o in inputs.optimizers]


def simulate_schedule(inputs: Inputs) -> Simulation:
    """Run the schedulers; the caller puts them and the options of the optimizers back."""
    if not inputs.schedulers:
        raise NotMeasured("no scheduler was given")
    if inputs.steps is None:
        raise NotMeasured("steps= was not given")
    if any(isinstance(s, torch.optim.lr_scheduler.ReduceLROnPlateau) for s in inputs.schedulers):
        raise NotMeasured("ReduceLROnPlateau depends on losses that are not known yet")
    half = max(inputs.steps // 2, 1)
    rates: list[list[float]] = []
    saved, began = None, time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch asks for an optimizer step before each of these
        for step in range(inputs.steps):
            if step == half:
                saved = [copy.deepcopy(scheduler.state_dict()) for scheduler in inputs.schedulers]
                options = _options(inputs)
            rates.append(_rates(inputs))
            _advance(inputs)
            if step % 1000 == 0 and time.monotonic() - began > MAX_SECONDS:
                break
        resumed: list[list[float]] = []
        if saved is not None:
            for scheduler, state in zip(inputs.schedulers, saved, strict=True):
                scheduler.load_state_dict(state)
            for group, values in zip(_groups(inputs), options, strict=True):
                group.update(values)
            for _ in range(min(3, len(rates) - half)):
                resumed.append(_rates(inputs))
                _advance(inputs)
    return Simulation(
        rates=np.asarray(rates),
        steps=inputs.steps,
        is_whole=len(rates) == inputs.steps,
        resumed_at=half,
        resumed=np.asarray(resumed).reshape(len(resumed), len(rates[0])),
    )


def _advance(inputs: Inputs) -> None:
    for scheduler in inputs.schedulers:
        scheduler.step()


def _groups(inputs: Inputs) -> list[dict[str, object]]:
    return [group for optimizer in inputs.optimizers for group in optimizer.param_groups]


def _rates(inputs: Inputs) -> list[float]:
    return [float(group.get("lr", np.nan)) for group in _groups(inputs)]  # type: ignore[arg-type]


def _options(inputs: Inputs) -> list[dict[str, object]]:
    """What a checkpoint of the optimizer would hold."""
    return [
        {name: copy.copy(value) for name, value in group.items() if name != "params"}
        for group in _groups(inputs)
    ]
