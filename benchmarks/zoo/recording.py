"""Recording: a small training run whose records are kept, as `trimtab.watch` would journal them.

Loss, gradient norm and learning rate at every step, and every tenth step what `observe` measures of
weights, updates and moments. A fault can be planted at one step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.zoo.session import Session, gradients_of
from trimtab.core.block import Block, Column
from trimtab.core.signals import GRAD_NORM, LOSS, LR, UPDATE_NORM, UPDATE_PER_LR
from trimtab.live.arithmetic import HostMath
from trimtab.live.measure.step_meter import GradientNorm
from trimtab.live.measure.telemetry import Telemetry, read_telemetry

TELEMETRY_EVERY = 10
MAX_STEPS = 1500


class EnoughSteps(Exception):
    """The run has as many records as are wanted."""


@dataclass
class Recording(Session):
    """A session that keeps its records and may plant a fault."""

    max_steps: int = MAX_STEPS
    fault: str = ""
    fault_at: int = 0
    records: list[dict[str, float]] = field(default_factory=list)
    _meters: dict[int, Telemetry] = field(default_factory=dict)

    def step(self, optimizer: Optimizer, loss: Tensor, clip: float | None = None) -> None:
        """Backward, clipping, update; keep the record."""
        number = len(self.records)
        since = number - self.fault_at if self.fault else -1
        plan = FAULTS[self.fault] if since >= 0 else None
        if plan is not None:
            loss = plan.on_loss(loss, since)
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients_of(optimizer)
        if plan is not None:
            plan.on_gradients(gradients, since)
        norm = float(nn.utils.get_total_norm(gradients)) if gradients else 0.0
        rates = [group["lr"] for group in optimizer.param_groups]
        if plan is not None:
            for group in optimizer.param_groups:
                group["lr"] *= plan.on_rate(since)
        now = optimizer.param_groups[0]["lr"]
        if clip is not None and norm > clip:
            torch._foreach_mul_(gradients, clip / (norm + 1e-6))
        optimizer.step()
        record = {LOSS: float(loss.detach()), GRAD_NORM: norm, LR: float(now)}
        if number % TELEMETRY_EVERY == 0:
            record |= self._telemetry(optimizer)
            if now > 0 and UPDATE_NORM in record:
                record[UPDATE_PER_LR] = record[UPDATE_NORM] / now
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if plan is not None:
            plan.on_weights([p for g in optimizer.param_groups for p in g["params"]], since)
        self.records.append(record)
        self.stream.append((record[LOSS], norm))
        if len(self.records) >= self.max_steps:
            raise EnoughSteps

    def _telemetry(self, optimizer: Optimizer) -> dict[str, float]:
        meter = self._meters.get(id(optimizer))
        if meter is None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            device = torch.device("cpu")
            gradients = GradientNorm(HostMath())
            meter = Telemetry(nn.ParameterList(parameters), (optimizer,), gradients, device)
            self._meters[id(optimizer)] = meter
        return read_telemetry(dict(zip(meter.slots, meter.measure().tolist(), strict=True)), 1)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to loss, gradients, learning rate and weights, by the steps since it began."""

    on_loss: Callable[[Tensor, int], Tensor] = lambda loss, since: loss
    on_gradients: Callable[[list[Tensor], int], None] = lambda gradients, since: None
    on_rate: Callable[[int], float] = lambda since: 1.0
    on_weights: Callable[[list[Tensor], int], None] = lambda weights, since: None


BAD_STEPS = 4


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


def save(path: Path, records: list[dict[str, float]]) -> None:
    """Write records as one array per signal; NaN of a missing value is told by a mask."""
    names = sorted({name for record in records for name in record})
    arrays: dict[str, Any] = {}
    for place, name in enumerate(names):
        rows = [row for row, record in enumerate(records) if name in record]
        arrays[f"r{place}"] = np.array(rows, dtype=np.int32)
        arrays[f"v{place}"] = np.array([records[row][name] for row in rows])
    np.savez_compressed(path, names=np.array(names), length=len(records), **arrays)


def load(path: Path) -> Block:
    """Return the block of a file that `save` wrote."""
    with np.load(path) as file:
        length = int(file["length"])
        columns = {}
        for place, name in enumerate(file["names"].tolist()):
            values, present = np.full(length, np.nan), np.zeros(length, dtype=np.bool_)
            values[file[f"r{place}"]] = file[f"v{place}"]
            present[file[f"r{place}"]] = True
            columns[name] = Column(values=values, present=present)
    return block_of(columns, length)


def block_of(columns: dict[str, Column], length: int) -> Block:
    """Return a block with steps from 1 on."""
    return Block.from_columns(columns, step=np.arange(1, length + 1))
