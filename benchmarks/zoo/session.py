"""Session: one small training run whose records are kept, as `trimtab.watch` would journal them.

Loss, gradient norm and learning rate at every step, and every tenth step what `observe` measures of
weights, updates and moments. A fault can be planted at one step.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.core.signals import GRAD_NORM, LOSS, LR, UPDATE_NORM, UPDATE_PER_LR
from trimtab.live.arithmetic import HostMath
from trimtab.live.measure.step_meter import GradientNorm
from trimtab.live.measure.telemetry import Telemetry, read_telemetry

TELEMETRY_EVERY = 10
BAD_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to loss, gradients, learning rate and weights, by the steps since it began."""

    on_loss: Callable[[Tensor, int], Tensor] = lambda loss, since: loss
    on_gradients: Callable[[list[Tensor], int], None] = lambda gradients, since: None
    on_rate: Callable[[int], float] = lambda since: 1.0
    on_weights: Callable[[list[Tensor], int], None] = lambda weights, since: None


NO_FAULT = Fault()


class Session:
    """What a kind of run trains with: random numbers, and `step` in place of the usual lines."""

    def __init__(self, seed: int, fault: str = "", fault_at: int = 0) -> None:
        torch.manual_seed(seed)
        self.seed = seed
        self.dice = np.random.default_rng([seed, 1])
        self.generator = torch.Generator().manual_seed(1000 + seed)
        self.records: list[dict[str, float]] = []
        self._fault, self._fault_at = FAULTS[fault] if fault else NO_FAULT, fault_at
        self._meters: dict[int, Telemetry] = {}

    def step(self, optimizer: Optimizer, loss: Tensor, clip: float | None = None) -> None:
        """Backward, clipping, update; keep the record."""
        number = len(self.records)
        since = number - self._fault_at
        fault = self._fault if since >= 0 else NO_FAULT
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        loss = fault.on_loss(loss, since)
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        fault.on_gradients(gradients, since)
        norm = float(nn.utils.get_total_norm(gradients)) if gradients else 0.0
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= fault.on_rate(since)
        now = optimizer.param_groups[0]["lr"]
        if clip is not None and norm > clip:
            torch._foreach_mul_(gradients, clip / (norm + 1e-6))
        optimizer.step()
        record = {LOSS: float(loss.detach()), GRAD_NORM: norm, LR: float(now)}
        if number % TELEMETRY_EVERY == 0:
            record |= self._telemetry(optimizer, parameters)
            if now > 0 and UPDATE_NORM in record:
                record[UPDATE_PER_LR] = record[UPDATE_NORM] / now
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        fault.on_weights(parameters, since)
        self.records.append(record)

    def _telemetry(self, optimizer: Optimizer, parameters: list[Tensor]) -> dict[str, float]:
        meter = self._meters.get(id(optimizer))
        if meter is None:
            gradients, device = GradientNorm(HostMath()), torch.device("cpu")
            meter = Telemetry(nn.ParameterList(parameters), (optimizer,), gradients, device)
            self._meters[id(optimizer)] = meter
        return read_telemetry(dict(zip(meter.slots, meter.measure().tolist(), strict=True)), 1)

    def pick(self, count: int, size: int) -> Tensor:
        """Random places in a data set."""
        return torch.randint(0, count, (size,), generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)


def mlp(inputs: int, outputs: int, width: int = 64, hidden: int = 2) -> nn.Sequential:
    """A few layers with ReLU between them."""
    sizes = [inputs, *[width] * hidden]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def _garbage(gradients: list[Tensor], since: int) -> None:
    """Replace the gradients by noise of 20 times their norm."""
    if since < BAD_STEPS:
        dice = torch.Generator().manual_seed(since)
        for gradient in gradients:
            size = 20 * float(gradient.norm()) / math.sqrt(gradient.numel()) + 1e-6
            gradient.copy_(size * torch.randn(gradient.shape, generator=dice))


def _kill(gradients: list[Tensor], since: int) -> None:
    for gradient in gradients:
        gradient.zero_()


@torch.no_grad()
def _flip(weights: list[Tensor], since: int) -> None:
    """Make one weight of the largest tensor as large as a flipped exponent bit does."""
    if since == 0:
        largest = max(weights, key=lambda weight: weight.numel()).view(-1)
        largest[len(largest) // 3] = 2.0**16 * max(float(largest.abs().mean()), 1e-3)


FAULTS = {
    "NaN batch": Fault(on_loss=lambda loss, since: loss * (math.nan if since == 0 else 1.0)),
    "bad rows": Fault(
        on_loss=lambda loss, since: loss * 4 if since < BAD_STEPS else loss, on_gradients=_garbage
    ),
    "LR x30": Fault(on_rate=lambda since: 30.0),
    "flipped weight": Fault(on_weights=_flip),
    "dead gradient": Fault(on_gradients=_kill),
    "loss x8": Fault(on_loss=lambda loss, since: 8 * loss),
}
"""By name. "bad rows" are a few batches whose gradients mean nothing."""
