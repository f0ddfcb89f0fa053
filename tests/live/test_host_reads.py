"""Nothing on the step path reads a device value on the host."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import EVERY_10, Tiny, loss_of, make_model

import trimtab
from trimtab.live.measure.step_meter import StepMeter
from trimtab.selftest.promises import READS, Counting

pytestmark = pytest.mark.usefixtures("device_path")


def steps(
    guard: Any,
    model: Tiny,
    optimizer: torch.optim.Optimizer,
    count: int,
    device: str,
    *,
    token_loss: bool = False,
) -> None:
    for _ in range(count):
        batch = torch.zeros((4, 9), dtype=torch.long, device=device)
        loss = loss_of(model, batch)
        guard.record(loss=loss, tokens=batch.numel())
        if token_loss:
            guard.record(token_loss=loss * torch.ones((4, 8), device=device))
        loss.backward()
        guard.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()


def count_operations(run_dir: Path, *, enabled: bool, token_loss: bool = False) -> Counter[str]:
    """Operations of 10 steps, telemetry among them, with fused AdamW."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with trimtab.watch(
        model, optimizer, run_dir=run_dir, config=EVERY_10, enabled=enabled
    ) as guard:
        steps(guard, model, optimizer, 10, "cpu")  # state and buffers exist now
        counting = Counting()
        with counting:
            steps(guard, model, optimizer, 10, "cpu", token_loss=token_loss)
    return counting.counts


def test_no_host_read_with_fused_adamw(tmp_path: Path) -> None:
    counts = count_operations(tmp_path, enabled=True)
    assert sum(counts[name] for name in READS) == 0


def test_losses_of_tokens_are_reduced_without_a_host_read(tmp_path: Path) -> None:
    counts = count_operations(tmp_path / "with", enabled=True, token_loss=True)
    assert sum(counts[name] for name in READS) == 0
    without = count_operations(tmp_path / "without", enabled=True)
    most = 36 if torch.__version__.startswith("2.6.") else 32  # it splits two of them
    assert sum(counts.values()) - sum(without.values()) < 10 * most, counts - without


def test_few_operations_a_step(tmp_path: Path) -> None:
    watched = count_operations(tmp_path, enabled=True)
    bare = count_operations(tmp_path, enabled=False)
    extra = sum(watched.values()) - sum(bare.values())
    # Ten steps, one of them with telemetry over 15 parameters, checksums and outputs of modules.
    assert 0 < extra / 10 < 72, watched - bare


def test_the_step_runs_on_meta_where_any_read_raises(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        steps(guard, model, optimizer, 25, "meta", token_loss=True)
        shields = guard._monitor.shields  # type: ignore[union-attr]
        assert not shields.numbers.is_down
        assert not shields.user.is_down


def test_a_planted_read_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = StepMeter.head

    def reading(self: StepMeter, phase: int) -> Any:
        measured = original(self, phase)
        measured[0].item()
        return measured

    monkeypatch.setattr(StepMeter, "head", reading)
    assert sum(count_operations(tmp_path / "fused", enabled=True)[name] for name in READS) == 10

    with torch.device("meta"):
        model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path / "meta") as guard:
        steps(guard, model, optimizer, 3, "meta")
        assert guard._monitor.shields.numbers.is_down  # type: ignore[union-attr]
