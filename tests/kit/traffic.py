"""What ranks exchange, counted: collectives of a step, requests to a store."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import trimtab
from trimtab.live.arithmetic import device_path

MAX_COLLECTIVES, MAX_BYTES = 2, 2048
"""The bars of a protected step."""
NUM_BLOCKS = 80
"""As deep as the largest open models: telemetry grows with the depth."""


class Block(nn.Module):
    """A block with the module names by which trimtab groups transformer parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.attention = nn.Linear(4, 4)
        self.mlp = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The three modules in sequence."""
        changed: torch.Tensor = self.mlp(self.attention(self.norm(x)))
        return changed


class Traffic:
    """Counts the collectives of each step and their bytes."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        """For each step, the bytes of each collective."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count every all_reduce; any other collective raises."""
        original = dist.all_reduce

        def count(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.steps[-1].append(tensor.numel() * tensor.element_size())
            return original(tensor, *args, **kwargs)

        def unexpected(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a collective that is not counted here")

        others = ("all_gather", "broadcast", "all_gather_object", "barrier", "reduce_scatter")
        with mock.patch.object(dist, "all_reduce", count):
            patches = [mock.patch.object(dist, name, unexpected) for name in others]
            for patch in patches:
                patch.start()
            try:
                yield
            finally:
                for patch in patches:
                    patch.stop()

    @property
    def max_collectives(self) -> int:
        """The maximum over all steps."""
        return max(len(step) for step in self.steps)

    @property
    def max_bytes(self) -> int:
        """The maximum over all steps; some steps also carry telemetry."""
        return max(map(sum, self.steps))

    @property
    def bytes_per_step(self) -> float:
        """The average."""
        return sum(map(sum, self.steps)) / len(self.steps)


def traffic(world: int, run_dir: Path, *, num_blocks: int = NUM_BLOCKS, steps: int = 40) -> Traffic:
    """The traffic of protected steps in a fake process group of this size."""
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        ends = {"embedding": nn.Linear(4, 4), "head": nn.Linear(4, 4)}
        model = nn.ModuleDict({"layers": blocks, **ends})
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        counted = Traffic()
        with (
            device_path(),
            trimtab.watch(model, optimizer, run_dir=run_dir, mode="protect") as guard,
            counted.counting(),
        ):
            for _ in range(steps):
                counted.steps.append([])
                x = ends["embedding"](torch.ones(2, 4))
                for block in blocks:
                    x = block(x)
                x = ends["head"](x)
                loss = x.square().mean()
                guard.record(loss=loss, tokens=8)
                loss.backward()
                guard.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()
        return counted
    finally:
        dist.destroy_process_group()


class CountingStore:
    """Counts what is asked of a store, and the bytes of the values that are read and written."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        self.num_read = self.num_written = 0

    def __getattr__(self, name: str) -> Any:
        original = getattr(self._store, name)

        def call(*given: Any) -> Any:
            self.calls[name] += 1
            self.num_written += len(given[1]) if name == "set" else 0
            found = original(*given)
            self.num_read += len(found) if isinstance(found, bytes) else 0
            return found

        return call
