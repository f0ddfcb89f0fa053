"""Losses recorded in evaluation belong to no training step."""

from pathlib import Path

import pytest
import torch
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import adamw, column, discarded_steps, losses

import trimtab


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_a_loss_recorded_in_evaluation_is_not_added_to_a_step(
    mode: str, context: type, tmp_path: Path
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    true = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:

        def compute_loss(batch: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
            loss = loss_of(model, batch) * factor
            guard.record(loss=loss, tokens=batch.numel())
            return loss

        for step, batch in enumerate(batches(10)):
            if step == 5:
                model.eval()
                with context():
                    for other in batches(4, seed=7):
                        compute_loss(other, 1e6)
                model.train()
            optimizer.zero_grad()
            loss = compute_loss(batch)
            true.append(loss.item())
            loss.backward()
            optimizer.step()
    assert losses(tmp_path) == pytest.approx(true, rel=1e-5)
    assert set(column(tmp_path, "tokens")) == {36.0}
    assert mode == "observe" or discarded_steps(tmp_path) == []


def test_a_nan_in_evaluation_discards_no_step(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for step, batch in enumerate(batches(10)):
            if step == 5:
                with torch.no_grad():
                    guard.record(loss=loss_of(model, batch) * float("nan"))
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert discarded_steps(tmp_path) == []
    assert len(losses(tmp_path)) == 10
