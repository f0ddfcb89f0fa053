"""A small model and the loops that train it, with and without a guard.

No operation of the model adds up in an order that depends on threads, so two runs have the same
bits on every device. Dropout draws random numbers: a guard that drew one too would show.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trimtab
from trimtab.core.config import Config

WIDTH, ROWS = 32, 8


class SmallBlock(nn.Module):
    """A residual block, with the names by which trimtab groups parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input and what the block adds to it."""
        change: torch.Tensor = self.mlp(self.norm(x))
        return x + change


class SmallModel(nn.Module):
    """Two blocks, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(SmallBlock() for _ in range(2))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A prediction of the same shape."""
        for block in self.blocks:
            x = block(x)
        predicted: torch.Tensor = self.head(self.dropout(x))
        return predicted


@dataclass(kw_only=True)
class Training:
    """One run: the model, what trains it, and the losses so far."""

    device: torch.device
    autocast: torch.dtype | None = None
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    scaler: torch.amp.GradScaler | None = field(init=False, default=None)
    losses: list[torch.Tensor] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)  # of all devices
        self.model = SmallModel().to(self.device)
        is_fused = self.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-2, fused=True if is_fused else None
        )
        if self.autocast is torch.float16:
            # Small enough to overflow never, large enough to matter.
            self.scaler = torch.amp.GradScaler(self.device.type, init_scale=1024.0)

    def watch(self, folder: Path, mode: str, **settings: Any) -> Any:
        """A guard on this run; what is about recovery is left to the loop."""
        config = Config().override({"ladder.enabled": False, **settings})
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
        """One step of a plain loop; `guard` records the loss if there is one."""
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


def batches(count: int) -> list[torch.Tensor]:
    """The same batches in every run."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(count)]
