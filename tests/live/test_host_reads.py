"""Nothing on the step path reads a device value on the host, or makes a tensor of a Python list.

On a GPU either waits for all work of the stream: the second is a copy from pageable memory, and
does not show as a read.
"""

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import Run, watching
from torch import nn, optim
from torch.overrides import TorchFunctionMode

import trimtab
from trimtab.core.config import Config, LiveConfig
from trimtab.live.measure.step_meter import StepMeter
from trimtab.live.ranks.exchange import StepState
from trimtab.selftest.promises import READS, Counting

pytestmark = pytest.mark.usefixtures("device_path")

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


@pytest.mark.parametrize("mode", ["observe", "protect", "recover"])
def test_nothing_is_read_and_no_list_copied_in_a_step(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WithStatistics()
    found, reads = HostCopies(), Counting()
    with watching(tmp_path, mode, model=model) as run:
        for number, batch in enumerate(batches(60)):
            is_late = number >= 20
            with found if is_late else HostCopies(), reads if is_late else Counting():
                loss = model(batch)
                run.guard.record(loss=loss, tokens=batch.numel())
                loss.backward()
                if mode != "protect":
                    edit(model, number)
                run.optimizer.step()
                run.optimizer.zero_grad()
    assert not found.lines
    assert num_reads(reads.counts) == 0


def test_a_planted_copy_is_found() -> None:
    found = HostCopies(__file__)
    with found:
        torch.tensor([1, 2])
        torch.zeros(3)[[0, 1]]
        torch.zeros(3)[0:2]
        torch.full((3,), 1.0)
    assert found.lines.total() == 2


def num_reads(counts: Counter[str]) -> int:
    return sum(counts[name] for name in READS)


def take(run: Run, count: int, *, device: str = "cpu", token_loss: bool = False) -> None:
    """Take steps; nothing but the guard may read a number."""
    for _ in range(count):
        batch = torch.zeros((4, 9), dtype=torch.long, device=device)
        loss = loss_of(run.model, batch)
        run.guard.record(loss=loss, tokens=batch.numel())
        if token_loss:
            run.guard.record(token_loss=loss * torch.ones((4, 8), device=device))
        loss.backward()
        run.guard.clip_grad_norm_(1.0)
        run.optimizer.step()
        run.optimizer.zero_grad()


def count(
    folder: Path, mode: str = "", make: Any = None, *, steps: int, every: int, **options: Any
) -> Counter[str]:
    """Operations of some steps, once state and buffers exist; bare without a mode."""
    with watching(
        folder / mode,
        mode or "observe",
        make=make or (lambda parameters: optim.AdamW(parameters, fused=True)),
        enabled=bool(mode),
        config=Config(live=LiveConfig(telemetry_every=every)),
    ) as run:
        take(run, 10)
        counting = Counting()
        with counting:
            take(run, steps, **options)
    return counting.counts


def test_few_operations_a_step_and_losses_of_tokens_without_a_read(tmp_path: Path) -> None:
    """Ten steps, one of them with telemetry over 15 parameters, checksums, outputs of modules."""
    watched = count(tmp_path, "observe", steps=10, every=10)
    bare = count(tmp_path, steps=10, every=10)
    assert num_reads(watched) == 0
    assert 0 < (watched.total() - bare.total()) / 10 < 72, watched - bare
    counts = count(tmp_path / "losses", "observe", steps=10, every=10, token_loss=True)
    assert num_reads(counts) == 0
    most = 36 if torch.__version__.startswith("2.6.") else 32  # it splits two of them
    assert counts.total() - watched.total() < 10 * most, counts - watched


GRID = 32
"""Two turns of the grid on which the baseline of the gate is worked out."""


def test_protection_costs_few_operations_and_a_read_only_where_no_flag_is_read(
    tmp_path: Path,
) -> None:
    protected = count(tmp_path, "protect", optim.AdamW, steps=GRID, every=1000)  # promoted
    assert num_reads(protected) == 0
    bare = count(tmp_path, steps=GRID, every=1000)
    extra = (protected.total() - bare.total()) / GRID
    assert 0 < extra <= 90, protected - bare  # with all that observing needs
    observed = count(tmp_path, "observe", steps=GRID, every=1000)
    assert 0 < (protected.total() - observed.total()) / GRID <= 68
    by_hand = count(tmp_path / "by hand", "protect", optim.RMSprop, steps=GRID, every=1000)
    assert num_reads(by_hand) == GRID


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_a_step_runs_where_any_read_raises(mode: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = make_model()
    optimizer = optim.AdamW(model.parameters(), foreach=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:
        monitor: Any = guard._monitor  # type: ignore[union-attr]
        if mode == "observe":
            take(Run(guard, model, optimizer), 25, device="meta", token_loss=True)
        else:
            for _ in range(20):  # a decision; the update itself could not be taken here
                guard.record(loss=torch.zeros((), device="meta"), tokens=4)
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                guard.clip_grad_norm_(1.0)
                monitor.before_update(optimizer)
                monitor._close(StepState.APPLIED)
        assert not monitor.shields.failed


def test_a_planted_read_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = StepMeter.step_sums

    def reading(self: StepMeter, phase: int) -> Any:
        measured = original(self, phase)
        measured[0].item()
        return measured

    monkeypatch.setattr(StepMeter, "step_sums", reading)
    assert num_reads(count(tmp_path, "observe", steps=10, every=10)) == 10
