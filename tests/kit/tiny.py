"""A model of a few thousand parameters and loops around it, for tests of the guard."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.journal import RunDirectory, read_journal

VOCABULARY = 32
WIDTH = 16


class TinyBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        change: torch.Tensor = self.mlp(y + self.attention(y).cumsum(dim=1) * 0.1)
        return x + change


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(TinyBlock() for _ in range(2))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.dropout(x))
        return logits


def make_model(seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny()


def batches(count: int, seed: int = 1, size: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (size, 9), generator=generator) for _ in range(count)]


def loss_of(model: Callable[..., torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@dataclass
class Setup:
    """One way to train: what the user's loop looks like."""

    optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]]
    accumulate: int = 1
    autocast: torch.dtype | None = None
    initial_scale: float | None = None
    """For fp16 with GradScaler."""
    compile: Callable[[nn.Module], Callable[..., torch.Tensor]] | None = None
    clip: float | None = 0.5
    guard_clips: bool = False
    steps: int = 200
    mode: str = "observe"
    wrap: Callable[[nn.Module], nn.Module] = field(default=lambda model: model)


EVERY_10 = Config.from_dict({"live": {"telemetry_every": 10}})
"""Telemetry at every tenth step, however fast the machine is."""


@dataclass
class Outcome:
    """All that a run leaves behind."""

    parameters: list[torch.Tensor]
    state: list[Any]
    rng: torch.Tensor
    norms: list[float]
    losses: list[float]


def train(
    setup: Setup,
    run_dir: Path | None,
    *,
    config: Config | None = None,
    data: Iterable[torch.Tensor] | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> Outcome:
    """Train by a plain loop, with a guard if there is a run directory."""
    model = setup.wrap(make_model())
    optimizers = setup.optimizers(model)
    scaler = None
    if setup.initial_scale is not None:
        scaler = torch.amp.GradScaler("cpu", init_scale=setup.initial_scale, growth_interval=20)
    guard = trimtab.watch(
        model,
        optimizers,
        run_dir=run_dir or "unused",
        mode=setup.mode,
        config=config or EVERY_10,
        enabled=run_dir is not None,
        state={"scaler": scaler},
    )
    call = setup.compile(model) if setup.compile else model
    stream = list(data) if data is not None else batches(setup.steps * setup.accumulate)
    norms, losses = [], []
    with guard:
        for step in range(setup.steps):
            on_step(step)
            for micro in range(setup.accumulate):
                batch = stream[step * setup.accumulate + micro]
                with torch.autocast("cpu", setup.autocast, enabled=setup.autocast is not None):
                    loss = loss_of(call, batch)
                guard.record(loss=loss, tokens=batch.numel())
                losses.append(float(loss.detach()))
                scaled = loss / setup.accumulate
                (scaler.scale(scaled) if scaler else scaled).backward()
            if scaler:
                for optimizer in optimizers:
                    scaler.unscale_(optimizer)
            if setup.clip is not None:
                if setup.guard_clips:
                    norm = guard.clip_grad_norm_(setup.clip)
                else:
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
                norms.append(float(norm.detach()))
            for optimizer in optimizers:
                if scaler:
                    scaler.step(optimizer)
                else:
                    optimizer.step()
            if scaler:
                scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()
    return Outcome(
        parameters=[parameter.detach().clone() for parameter in model.parameters()],
        state=[optimizer.state_dict()["state"] for optimizer in optimizers],
        rng=torch.get_rng_state(),
        norms=norms,
        losses=losses,
    )


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    for a, b in zip(one.parameters, other.parameters, strict=True):
        assert torch.equal(_whole(a).view(torch.uint8), _whole(b).view(torch.uint8))
    for first, second in zip(one.state, other.state, strict=True):
        assert first.keys() == second.keys()
        for key in first:
            assert first[key].keys() == second[key].keys()
            for name, value in first[key].items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(_whole(value), _whole(second[key][name])), name
                else:
                    assert value == second[key][name]
    assert torch.equal(one.rng, other.rng)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def journal_of(run_dir: Path) -> Block:
    """What the run's journal holds; it must be whole."""
    reading = read_journal(RunDirectory(run_dir))
    assert reading.damage == ()
    return reading.block


def adamw(**options: Any) -> Callable[[nn.Module], list[torch.optim.Optimizer]]:
    return lambda model: [torch.optim.AdamW(model.parameters(), lr=1e-2, **options)]


def sgd(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)]


def muon_and_adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    matrices = [p for name, p in model.named_parameters() if "blocks" in name and p.dim() == 2]
    others = [p for name, p in model.named_parameters() if not ("blocks" in name and p.dim() == 2)]
    return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)]
