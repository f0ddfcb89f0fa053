"""Fabric is a loop of the user: the guard in it."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.fabric.plugins.precision import MixedPrecision
from tests.kit.tiny import Outcome, assert_same_bits, batches, journal_of, loss_of, make_model
from torch.utils.data import DataLoader

import trimtab

STEPS, NAN_STEP = 8, 5


def train(folder: Path | None, mode: str, precision: str, nan_at: int = -1) -> Outcome:
    """The user's own loop; `folder` is None for a run without trimtab."""
    plugin: Any = {"precision": precision}
    if precision == "16-mixed":  # Fabric makes no scaler on the CPU
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        plugin = {"plugins": MixedPrecision("16-mixed", "cpu", scaler)}
    fabric = L.Fabric(accelerator="cpu", devices=1, **plugin)
    torch.manual_seed(7)
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    data: Any = batches(STEPS)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=None))
    losses = []
    with trimtab.watch(
        model,
        optimizer,
        run_dir=folder or "unused",
        mode=mode,
        enabled=folder is not None,
        state={"scaler": getattr(fabric._precision, "scaler", None)},
    ) as guard:
        for step, batch in enumerate(loader):
            loss = loss_of(model, batch) * (torch.nan if step == nan_at else 1.0)
            losses.append(float(loss.detach()))
            guard.record(loss=loss, tokens=batch.numel())
            fabric.backward(loss)
            norm = fabric.clip_gradients(model, optimizer, max_norm=1e-2, error_if_nonfinite=False)
            guard.record(grad_norm=norm)
            optimizer.step()
            optimizer.zero_grad()
    return Outcome(
        parameters=[parameter.detach().clone() for parameter in model.parameters()],
        state=[optimizer.state_dict()["state"]],
        rng=torch.get_rng_state(),
        norms=[],
        losses=losses,
    )


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_observing_keeps_the_bits_and_sees_the_norm_before_clipping(
    precision: str, tmp_path: Path
) -> None:
    bare = train(None, "observe", precision)
    assert_same_bits(bare, train(tmp_path, "observe", precision))
    block = journal_of(tmp_path)
    assert block.column("loss").values == pytest.approx(bare.losses, rel=1e-5)
    assert (block.column("grad_norm").values > 0.1).all()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_protecting_discards_a_nan_step(precision: str, tmp_path: Path) -> None:
    trained = train(tmp_path, "protect", precision, NAN_STEP)
    assert all(torch.isfinite(parameter).all() for parameter in trained.parameters)
    steps = {int(state["step"]) for state in trained.state[0].values()}
    assert steps == {STEPS - 1}
