"""What training does: a few real steps, repeated steps on one batch, the schedule to its end."""

import copy
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.ranks import exchange
from trimtab.checks.rule import NotMeasured
from trimtab.core.block import FloatArray
from trimtab.state.batches import clone

SHORT_STEPS = 10
"""Steps over several batches."""

OVERFIT_STEPS = 30
"""Steps on one batch."""

ENOUGH_FALL = 0.5
"""Share of the first loss at which one batch counts as learned and the rest is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """A few steps at the peak learning rate."""

    norms: tuple[float, ...]
    """Gradient norms before clipping."""
    unchanged: dict[str, float]
    """Share of the elements of each matrix with a gradient that no step has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfit:
    """Repeated training on one batch."""

    losses: tuple[float, ...]
    lr_factor: float
    """Times the peak learning rate."""

    @property
    def fall(self) -> float:
        """How much of the first loss is gone; NaN if a loss was not finite."""
        if not all(map(math.isfinite, self.losses)) or self.losses[0] == 0:
            return math.nan
        return 1.0 - min(self.losses[1:]) / self.losses[0]


def run_steps(
    inputs: Inputs, batches: Sequence[Any], rates: Sequence[Sequence[float]], num_steps: int
) -> tuple[list[float], list[float]]:
    """Train on the batches at fixed learning rates; return losses and gradient norms."""
    exchange("steps", None)  # all ranks begin together: the loss may communicate
    inputs.model.train()
    set_rates(inputs, rates)
    held = set(inputs.held)
    losses: list[float] = []
    norms: list[float] = []
    for step in range(num_steps):
        for optimizer in inputs.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = inputs.loss(inputs.model, clone(batches[step % len(batches)]))
            loss.backward()
        trained = [p for p in held if p.grad is not None]
        limit = inputs.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(trained, limit) if trained else torch.zeros(())
        for optimizer in inputs.optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
        norms.append(float(norm))
        if step + 1 < num_steps and _is_enough(losses):
            break
    return losses, norms


def _is_enough(losses: Sequence[float]) -> bool:
    """Return whether all ranks have learned their batches, or a loss is not finite."""
    is_finite = math.isfinite(losses[-1])
    has_learned = is_finite and losses[-1] < (1 - ENOUGH_FALL) * losses[0]
    seen = exchange("a step", (is_finite, has_learned))
    return not all(finite for finite, _ in seen) or all(learned for _, learned in seen)


def set_rates(inputs: Inputs, rates: Sequence[Sequence[float]]) -> None:
    for optimizer, values in zip(inputs.optimizers, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, values, strict=True):
            if isinstance(group.get("lr"), torch.Tensor):
                group["lr"].fill_(rate)  # a captured graph or compiled step holds this tensor
            elif "lr" in group:
                group["lr"] = rate


def short_run(inputs: Inputs, batches: Sequence[Any], rates: Sequence[Sequence[float]]) -> ShortRun:
    """Make ten steps, and look which elements they moved."""
    held = set(inputs.held)
    before = {
        name: p.detach().clone()
        for name, p in inputs.model.named_parameters()
        if p.requires_grad and p in held and p.dim() > 1
    }
    _, norms = run_steps(inputs, batches, rates, SHORT_STEPS)
    now = dict(inputs.model.named_parameters())
    unchanged = {}
    for name, old in before.items():
        gradient = now[name].grad
        moved = None if gradient is None else gradient != 0
        # Rows of an embedding whose tokens did not occur have no gradient.
        if moved is not None and bool(moved.any()):
            same = (old == now[name].detach())[moved]
            unchanged[name] = float(same.float().mean())
    return ShortRun(norms=tuple(norms), unchanged=unchanged)


def overfit(
    inputs: Inputs, batch: Any, rates: Sequence[Sequence[float]], lr_factor: float
) -> Overfit:
    scaled = [[lr_factor * rate for rate in values] for values in rates]
    losses, _ = run_steps(inputs, [batch], scaled, OVERFIT_STEPS)
    return Overfit(losses=tuple(losses), lr_factor=lr_factor)


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
        highest = iter(self.rates.max(axis=0).tolist())
        return [[next(highest) for _ in o.param_groups] for o in inputs.optimizers]


def simulate_schedule(inputs: Inputs) -> Simulation:
    """Run the schedulers; the caller restores them and the options of the optimizers."""
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
            for group, values in zip(inputs.groups, options, strict=True):
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


def _rates(inputs: Inputs) -> list[float]:
    return [float(group.get("lr", np.nan)) for group in inputs.groups]


def _options(inputs: Inputs) -> list[dict[str, object]]:
    """Return what a checkpoint of the optimizer would hold."""
    return [
        {name: copy.copy(value) for name, value in group.items() if name != "params"}
        for group in inputs.groups
    ]
