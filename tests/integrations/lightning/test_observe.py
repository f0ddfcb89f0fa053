"""Observing a run of the Lightning Trainer changes nothing, and sees the true numbers."""

from pathlib import Path

import numpy as np
import torch
from tests.kit.hf import TinyForCausalLM
from tests.kit.lightning import Module, Run, in_settings, watched
from tests.kit.tiny import assert_same_bits, journal_of

from trimtab.core.token_losses import NAMES


@in_settings(("32-true", 1), ("bf16-mixed", 4), ("16-mixed", 4))
def test_same_bits_undivided_losses_and_norms_from_before_clipping(
    precision: str, accumulate: int, tmp_path: Path
) -> None:
    run = Run(precision=precision, accumulate=accumulate, clip=1e-3)
    bare, _ = run.fit()
    seen, _ = run.fit([watched(tmp_path)])
    assert_same_bits(bare, seen)
    block = journal_of(tmp_path)
    assert block.step.tolist() == list(range(8))
    assert block.data_position.tolist() == list(range(0, 8 * accumulate, accumulate))
    means = np.array(bare.losses).reshape(8, accumulate).mean(axis=1)
    np.testing.assert_allclose(block.column("loss").values, means, rtol=1e-5)
    assert block.column("tokens").values.tolist() == [36.0 * accumulate] * 8
    assert (block.column("grad_norm").values > 0.1).all()


class OfTransformers(Module):
    """A model that computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyForCausalLM()

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch, labels=batch).loss
        return loss


def test_token_losses_are_taken_from_a_model_inside_the_module(tmp_path: Path) -> None:
    run = Run(accumulate=2, make=OfTransformers)
    bare, _ = run.fit()
    seen, _ = run.fit([watched(tmp_path)])
    assert_same_bits(bare, seen)
    block = journal_of(tmp_path)
    shares = [block.column(name).values[0] for name in NAMES]
    np.testing.assert_allclose(sum(shares), 1.0, rtol=1e-5)
