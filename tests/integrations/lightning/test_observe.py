"""Observing a run of the Lightning Trainer changes nothing, and sees the true numbers."""

from pathlib import Path

import numpy as np
from tests.kit.lightning import Run, in_settings, watched
from tests.kit.tiny import assert_same_bits, journal_of


@in_settings()
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
