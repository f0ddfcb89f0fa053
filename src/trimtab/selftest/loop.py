"""A small model, the loops that train it with and without a guard, and the bits that a run leaves.

No operation of the model adds up in an order that depends on threads, so two runs have the same
bits on every device. Dropout draws random numbers: a guard that drew one too would show.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

import trimtab
from trimtab.core.config import Config

WIDTH, ROWS = 32, 8


class CannotCheck(Exception):
    """Raised by a check that this device cannot make."""


class CheckFailed(Exception):
    """Raised by a check that found a broken promise."""


class SmallBlock(nn.Module):
    """A residual block, with the names by which trimtab groups parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.mlp(self.norm(x))
        return x + change


class SmallModel(nn.Module):
    """Blocks, dropout and a head."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(SmallBlock(width) for _ in range(depth))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        predicted: torch.Tensor = self.head(self.dropout(x))
        return predicted


@dataclass(kw_only=True)
class Training:
    """One run: the model, what trains it, and the losses so far."""

    device: torch.device
    autocast: torch.dtype | None = None
    width: int = WIDTH
    depth: int = 2
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    scaler: torch.amp.GradScaler | None = field(init=False, default=None)
    losses: list[torch.Tensor] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)  # of all devices
        self.model = SmallModel(self.width, self.depth).to(self.device)
        is_fused = self.device.type in _get_fused_kernels_supported_devices()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-2, fused=True if is_fused else None
        )
        if self.autocast is torch.float16:
            # Small enough to overflow never, large enough to matter.
            self.scaler = torch.amp.GradScaler(self.device.type, init_scale=1024.0)

    def watch(self, folder: Path, mode: str, **settings: Any) -> Any:
        """Return a guard on this run that leaves recovery to the loop."""
        config = Config().override(settings)
        return trimtab.watch(
            self.model,
            self.optimizer,
            run_dir=folder,
            mode=mode,
            config=config,
            state={"scaler": self.scaler},
        )

    def step(
        self,
        batch: torch.Tensor,
        guard: Any = None,
        *,
        spoil_loss: bool = False,
        after_backward: Callable[[], None] = lambda: None,
    ) -> None:
        """Make one step of a plain loop; `guard` records the loss if there is one."""
        batch = batch.to(self.device)
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            loss = (self.model(batch).float() - batch.flip(0)).square().mean()
        if spoil_loss:
            loss = loss * float("nan")
        if guard is not None:
            guard.record(loss=loss, tokens=batch.shape[0])
        self.losses.append(loss.detach())
        scaler = self.scaler
        (scaler.scale(loss) if scaler else loss).backward()
        after_backward()
        if scaler:
            scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if scaler:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()


def batches(count: int, rows: int = ROWS, width: int = WIDTH) -> list[torch.Tensor]:
    """Return the same batches in every run."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, width, generator=generator) for _ in range(count)]


def trained_bits(run: Training) -> dict[str, torch.Tensor]:
    """Return a copy of weights and optimizer state by name, on the host."""
    names: dict[torch.Tensor, str] = {p: name for name, p in run.model.named_parameters()}
    weights = {f"weight {name}": p.detach().cpu().clone() for p, name in names.items()}
    state = {
        f"{key} of {names[parameter]}": value.detach().cpu().clone()
        for parameter, values in run.optimizer.state.items()
        for key, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    return {**weights, **state}


def all_bits(run: Training) -> dict[str, torch.Tensor]:
    """Return weights, optimizer state, losses, loss scale and random numbers by name."""
    found = trained_bits(run)
    if run.losses:
        found["losses"] = torch.stack(run.losses).float().cpu()
    if run.scaler is not None:
        found["loss scale"] = torch.tensor(run.scaler.get_scale())
    found["random state of the CPU"] = torch.get_rng_state()
    if run.device.type == "cuda":
        found["random state of the GPU"] = torch.cuda.get_rng_state(run.device)
    return found


def all_finite(tensors: dict[str, torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def find_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> str | None:
    """Name the first tensor that is not the same in every bit; None if all are."""
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            return f"{name} is only in one of them"
        if not _same(one[name], other[name]):
            return f"{name} differs"
    return None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # As bytes: a NaN is equal to the same NaN, and 0.0 is not -0.0.
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*flat)
