"""Losses recorded in evaluation belong to no training step."""

from pathlib import Path

import pytest
import torch
from tests.kit.tiny import batches, loss_of
from tests.kit.user_loop import NAN, column, discarded_steps, losses, watching


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("mode", "factor"), [("observe", 1e6), ("protect", 1e6), ("protect", NAN)])
def test_a_loss_recorded_in_evaluation_belongs_to_no_step(
    mode: str, factor: float, context: type, tmp_path: Path
) -> None:
    true = []
    with watching(tmp_path, mode) as run:
        for step, batch in enumerate(batches(10)):
            if step == 5:
                run.model.train(mode == "observe")  # either is an evaluation
                with context():
                    for other in batches(4, seed=7):
                        loss = factor * loss_of(run.model, other)
                        run.guard.record(loss=loss, tokens=other.numel())
                run.model.train()
            true.append(run.step(batch, tokens=batch.numel()).item())
    assert losses(tmp_path) == pytest.approx(true, rel=1e-5)
    assert set(column(tmp_path, "tokens")) == {36.0}
    assert mode == "observe" or discarded_steps(tmp_path) == []
