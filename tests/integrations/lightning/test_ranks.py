"""The Lightning Trainer on two real ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import strategies
from tests.integrations.lightning.test_recover import SOON, Flips, undone_in
from tests.kit.lightning import Module, Run, in_settings, join_ranks, watched
from tests.kit.tiny import Outcome, assert_same_bits, journal_of
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trimtab.lab.trainer.local_ranks import run_ranks


def compare(rank: int, precision: str, accumulate: int, folder: Path) -> list[float]:
    run = Run(precision=precision, accumulate=accumulate, ranks=2, trainer=join_ranks(rank))
    bare, _ = run.fit()
    seen, _ = run.fit([watched(folder)])
    assert_same_bits(bare, seen)
    return seen.losses


@in_settings(("32-true", 1))
def test_same_bits_and_the_loss_over_both_ranks(
    precision: str, accumulate: int, tmp_path: Path
) -> None:
    losses = run_ranks(compare, 2, precision, accumulate, tmp_path)
    mean = np.mean(losses, axis=0).reshape(8, accumulate).mean(axis=1)
    np.testing.assert_allclose(journal_of(tmp_path).column("loss").values, mean, rtol=1e-5)


class OneBadRank(Module):
    """Its batch 5 is NaN on the second rank only."""

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.nan if batch_idx == 5 and self.trainer.global_rank == 1 else loss


def protect(rank: int, folder: Path) -> list[Any]:
    run = Run(ranks=2, trainer=join_ranks(rank), make=OneBadRank)
    trained, _ = run.fit([watched(folder, "protect")])
    return [parameter.tolist() for parameter in trained.parameters]


def test_a_nan_on_one_rank_is_discarded_on_both(tmp_path: Path) -> None:
    one, other = run_ranks(protect, 2, tmp_path)
    assert one == other
    assert all(np.isfinite(parameter).all() for parameter in one)
    assert np.isnan(journal_of(tmp_path).column("loss").values).tolist().index(True) == 5


def undo(rank: int, accumulate: int, folder: Path) -> list[Any]:
    """A bit of a weight flips on the second rank only."""
    run = Run(steps=30, accumulate=accumulate, ranks=2, trainer=join_ranks(rank))
    callbacks = [watched(folder, "recover", config=SOON), Flips(17, ranks=(1,))]
    trained, trainer = run.fit(callbacks)
    assert trainer.global_step == 30
    return [parameter.tolist() for parameter in trained.parameters]


@pytest.mark.parametrize("accumulate", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_both_ranks_undo_what_happened_to_one(accumulate: int, tmp_path: Path) -> None:
    one, other = run_ranks(undo, 2, accumulate, tmp_path)
    assert one == other
    assert all(np.isfinite(parameter).all() for parameter in one)
    assert len(undone_in(tmp_path)) == 1


class Sharded(Module):
    """Each rank holds half of every parameter."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        if not isinstance(next(self.parameters()), DTensor):
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


def compare_sharded(rank: int, folder: Path) -> None:
    def fit(*callbacks: Any) -> Outcome:
        strategy = strategies.ModelParallelStrategy(process_group_backend="gloo")
        trainer = join_ranks(rank) | {"strategy": strategy}
        return Run(steps=30, ranks=2, make=Sharded, trainer=trainer).fit(list(callbacks))[0]

    assert_same_bits(fit(), fit(watched(folder / "observe")))
    protected = fit(watched(folder / "protect", "protect"))
    assert_same_bits(protected, fit(watched(folder / "healthy", "recover", config=SOON)))
    flipped = fit(watched(folder / "flipped", "recover", config=SOON), Flips(17, ranks=(1,)))
    assert all(bool(torch.isfinite(_local(p)).all()) for p in flipped.parameters)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(strategies, "ModelParallelStrategy"), reason="Lightning < 2.4")
def test_shards_of_fsdp2(tmp_path: Path) -> None:
    run_ranks(compare_sharded, 2, tmp_path)
    assert len(undone_in(tmp_path / "flipped")) == 1
    norms = journal_of(tmp_path / "observe").column("grad_norm").values
    assert (norms > 0.5).all()  # of whole parameters, before clipping to that
