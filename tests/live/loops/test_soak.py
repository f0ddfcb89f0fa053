"""A long run: memory, threads and handles stay flat.

`SOAK_STEPS` sets the length of each part; `scripts/bench loops soak` runs 100,000 steps.
"""

import gc
import os
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.user_loop import losses
from torch import nn

import trimtab

STEPS = int(os.environ.get("SOAK_STEPS", "2000"))
FIRST, LAST = STEPS // 4, STEPS
"""Between these two steps nothing may grow; the start fills caches and windows."""
MAX_GROWTH_KB = 12_000
"""Of resident memory between the two; 0.1 grew by 35 MB in 12,000 steps of LayerDrop."""


class Residual(nn.Module):
    """A few small layers, each of which may be left out."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, keep: Callable[[], bool]) -> torch.Tensor:
        for layer in self.layers:
            if keep():
                x = x + layer(x).relu()
        result: torch.Tensor = self.head(x)
        return result


def resident_kilobytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def usage() -> dict[str, int]:
    gc.collect()
    return {
        "kilobytes": resident_kilobytes(),
        "threads": threading.active_count(),
        "handles": len(list(Path("/proc/self/fd").iterdir())),
    }


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", ["observe", "protect", "recover"])
@pytest.mark.parametrize("kind", ["plain", "layer_drop", "create_graph"])
def test_a_long_run_grows_nothing(
    kind: str, mode: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    choice = random.Random(0)
    torch.manual_seed(0)
    model = Residual(30 if kind == "layer_drop" else 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = torch.randn(64, 4, 4)
    seen: dict[int, dict[str, int]] = {}

    def keep() -> bool:
        return kind != "layer_drop" or choice.random() < 0.9

    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:
        for step in range(1, STEPS + 1):
            loss = model(data[step % 64], keep).square().mean() + 1.0
            guard.record(loss=loss, tokens=16)
            set_gradients(model, loss, with_graph=kind == "create_graph")
            optimizer.step()
            optimizer.zero_grad()
            del loss
            if step in (FIRST, LAST):
                seen[step] = usage()
    first, last = seen[FIRST], seen[LAST]
    record_property("first", first)
    record_property("last", last)
    assert len(losses(tmp_path)) == STEPS
    assert last["threads"] <= first["threads"]
    assert last["handles"] <= first["handles"]
    assert last["kilobytes"] - first["kilobytes"] < MAX_GROWTH_KB


def set_gradients(model: nn.Module, loss: torch.Tensor, *, with_graph: bool) -> None:
    if not with_graph:
        loss.backward()
        return
    parameters: list[Any] = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
