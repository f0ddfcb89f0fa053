"""A few real steps, and one batch again and again, with the user's optimizer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.ranks import exchange
from trimtab.checks.objects.measure.trace import Trace
from trimtab.state.batches import clone

SHORT_STEPS = 10
"""Steps after which activations are looked at again."""

OVERFIT_STEPS = 30
"""Steps on one batch."""

ENOUGH_FALL = 0.5
"""Share of the first loss at which one batch counts as learned and the rest is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """A few steps at the peak learning rate."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    """Gradient norms before clipping."""
    trace: Trace
    """Of one more forward pass after the last step."""
    unchanged: dict[str, float]
    """Share of the elements of each matrix with a gradient that no step has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfit:
    """One batch, trained on again and again."""

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
    """Losses and gradient norms of real steps over the batches, at fixed learning rates."""
    exchange("steps", None)
    inputs.model.train()
    set_rates(inputs, rates)
    held = {p for o in inputs.optimizers for group in o.param_groups for p in group["params"]}
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
    """Whether all ranks have learned their batches, or a loss is not finite."""
    is_finite = math.isfinite(losses[-1])
    has_learned = is_finite and losses[-1] < (1 - ENOUGH_FALL) * losses[0]
    seen = exchange("a step", (is_finite, has_learned))
    return not all(finite for finite, _ in seen) or all(learned for _, learned in seen)


def set_rates(inputs: Inputs, rates: Sequence[Sequence[float]]) -> None:
    """Set the learning rate of every group."""
    for optimizer, values in zip(inputs.optimizers, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, values, strict=True):
            if isinstance(group.get("lr"), torch.Tensor):
                group["lr"].fill_(rate)
            elif "lr" in group:
                group["lr"] = rate


def short_run(inputs: Inputs, batches: Sequence[Any], rates: Sequence[Sequence[float]]) -> ShortRun:
    """Ten steps, and what the model looks like after them."""
    held = {p for o in inputs.optimizers for group in o.param_groups for p in group["params"]}
    before = {
        name: p.detach().clone()
        for name, p in inputs.model.named_parameters()
        if p.requires_grad and p in held and p.dim() > 1
    }
    losses, norms = run_steps(inputs, batches, rates, SHORT_STEPS)
    now = dict(inputs.model.named_parameters())
    unchanged = {}
    for name, old in before.items():
        gradient = now[name].grad
        moved = None if gradient is None else gradient != 0
        # Rows of an embedding whose tokens did not occur have no gradient.
        if moved is not None and bool(moved.any()):
            same = (old == now[name].detach())[moved]
            unchanged[name] = float(same.float().mean())
    exchange("a pass", None)
    trace = Trace(inputs.model)
    with torch.no_grad(), trace:
        inputs.loss(inputs.model, clone(batches[0]))
    return ShortRun(losses=tuple(losses), norms=tuple(norms), trace=trace, unchanged=unchanged)


def overfit(
    inputs: Inputs, batch: Any, rates: Sequence[Sequence[float]], lr_factor: float
) -> Overfit:
    """Train on one batch."""
    scaled = [[lr_factor * rate for rate in values] for values in rates]
    losses, _ = run_steps(inputs, [batch], scaled, OVERFIT_STEPS)
    return Overfit(losses=tuple(losses), lr_factor=lr_factor)
