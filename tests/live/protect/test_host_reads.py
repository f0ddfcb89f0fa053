"""Protection reads nothing on the host with a fused optimizer, one number with any other."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import make_model
from tests.live.test_host_reads import steps
from torch import optim

import trimtab
from trimtab.core.config import Config, LiveConfig
from trimtab.live.ranks.exchange import StepState
from trimtab.selftest.promises import READS, Counting

pytestmark = pytest.mark.usefixtures("device_path")

STEPS = 32
"""Two turns of the grid on which the baseline is worked out."""


def count(
    folder: Path, kind: type[optim.Optimizer], *, mode: str | None, **options: Any
) -> Counter[str]:
    """Operations of some steps that have no telemetry in them."""
    model = make_model()
    optimizer = kind(model.parameters(), **options)
    with trimtab.watch(
        model,
        optimizer,
        run_dir=folder / str(mode),
        mode=mode or "observe",
        enabled=mode is not None,
        config=Config(live=LiveConfig(telemetry_every=1000)),
    ) as guard:
        steps(guard, model, optimizer, 8, "cpu")
        counting = Counting()
        with counting:
            steps(guard, model, optimizer, STEPS, "cpu")
    return counting.counts


def reads(counts: Counter[str]) -> int:
    return sum(counts[name] for name in READS)


@pytest.mark.parametrize(
    "options", [pytest.param({"fused": True}, marks=pytest.mark.slow, id="fused"), {}]
)
def test_no_host_read_and_few_operations_with_adamw(
    options: dict[str, Any], tmp_path: Path
) -> None:
    protected = count(tmp_path, optim.AdamW, mode="protect", **options)
    assert reads(protected) == 0
    bare = count(tmp_path, optim.AdamW, mode=None, fused=True)
    extra = (protected.total() - bare.total()) / STEPS
    assert 0 < extra <= 90, protected - bare  # with all that observing needs
    observed = count(tmp_path, optim.AdamW, mode="observe", fused=True)
    assert 0 < (protected.total() - observed.total()) / STEPS <= 68


def test_one_host_read_with_an_optimizer_that_reads_no_flag(tmp_path: Path) -> None:
    assert reads(count(tmp_path, optim.RMSprop, mode=None)) == 0
    assert reads(count(tmp_path, optim.RMSprop, mode="protect")) == STEPS


def test_a_decision_is_taken_where_any_read_raises(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = make_model()
    optimizer = optim.AdamW(model.parameters(), foreach=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        monitor: Any = guard._monitor  # type: ignore[union-attr]
        for _ in range(20):
            guard.record(loss=torch.zeros((), device="meta"), tokens=4)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            guard.clip_grad_norm_(1.0)
            monitor.before_update(optimizer)
            monitor._close(StepState.APPLIED)
        assert not monitor.shields.numbers.is_down
        assert not monitor.gate.shield.is_down
