"""Nothing on the step path builds a tensor from a Python list, or indexes with one.

On a GPU either is a copy from pageable memory, which waits for all work of the stream. Neither
shows as a read.
"""

import traceback
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import one_of_each
from tests.kit.tiny import batches, loss_of, make_model
from torch import nn, optim
from torch.overrides import TorchFunctionMode

import trimtab
from trimtab.selftest.promises import READS, Counting

MAKERS = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
INDEXERS = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


class HostCopies(TorchFunctionMode):
    """Counts the lines that copy a list to a device, in files whose path has a certain part."""

    def __init__(self, path: str = "/trimtab/") -> None:
        super().__init__()
        self._path = path
        self.lines: Counter[str] = Counter()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if (function in MAKERS and _is_list(args[-1])) or (
            function in INDEXERS and _is_list(args[1])
        ):
            frames = traceback.extract_stack()
            ours = [f"{f.filename}:{f.lineno}" for f in frames if self._path in f.filename]
            self.lines.update(ours[-1:])
        return function(*args, **(kwargs or {}))


def _is_list(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, list) for part in parts) or (
        isinstance(value, tuple) and all(isinstance(part, float) for part in value)
    )


class WithStatistics(nn.Module):
    """Has small and large parameters, running statistics and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        noise: torch.Tensor = self.norm(torch.randn(16, 8)).square().mean()
        return loss_of(self.inner, batch) + 1e-3 * noise


def edit(model: nn.Module, number: int) -> None:
    """Write one tensor past torch's counters and one with them, at some steps."""
    first, second, *_ = model.parameters()
    if number % 7 == 0:
        first.data[0] = 0.5
    if number % 5 == 0:
        with torch.no_grad():
            second.mul_(1.01)


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize(
    ("mode", "edits"), one_of_each(product(["observe", "protect", "recover"], [True, False]))
)
def test_nothing_is_read_and_no_list_copied_in_a_step(
    mode: str, edits: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = WithStatistics()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    found, reads = HostCopies(), Counting()
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:
        for number, batch in enumerate(batches(60)):
            is_late = number >= 20
            with found if is_late else HostCopies(), reads if is_late else Counting():
                loss = model(batch)
                guard.record(loss=loss, tokens=batch.numel())
                loss.backward()
                if edits:
                    edit(model, number)
                optimizer.step()
                optimizer.zero_grad()
    assert not found.lines
    assert sum(reads.counts[name] for name in READS) == 0


def test_a_planted_copy_is_found() -> None:
    found = HostCopies(__file__)
    with found:
        torch.tensor([1, 2])
        torch.zeros(3)[[0, 1]]
        torch.zeros(3)[0:2]
        torch.full((3,), 1.0)
    assert found.lines.total() == 2
