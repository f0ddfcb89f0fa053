"""`recover` in each real trainer, by the documented lines only: what it undoes, what it leaves."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.kit.trainer_runs import RUNS, STEPS, Job

from trimtab.live.recover.experiments import Experiments, Laboratory

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerator"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]
TRL = [
    pytest.mark.slow,  # importing TRL takes longer than the tests
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed"),
]
OF_TRL = ("SFTTrainer", "GRPOTrainer")


def in_ci(*trainers: str) -> pytest.MarkDecorator:
    """Every trainer; these in CI. One with a loop of its own has the same parts as its Trainer."""
    return pytest.mark.parametrize(
        "trainer",
        [
            pytest.param(
                name, marks=TRL if name in OF_TRL else () if name in trainers else pytest.mark.slow
            )
            for name in RUNS
        ],
    )


@in_ci("Trainer")  # tests of Lightning's own flip a bit too
def test_a_bit_that_flips_in_a_weight_is_undone_and_the_run_goes_on(
    trainer: str, tmp_path: Path
) -> None:
    left = RUNS[trainer](Job(folder=tmp_path, fault="flip"))
    assert len(left.undone) == 1
    assert left.undone[0] <= 20
    assert left.is_finite
    assert left.num_records == STEPS  # every batch was trained on, or discarded, once


@in_ci("Lightning")
def test_a_head_that_is_reset_and_another_learning_rate_are_the_users(
    trainer: str, tmp_path: Path
) -> None:
    left = RUNS[trainer](Job(folder=tmp_path, fault="planned"))
    assert left.undone == []
    assert left.num_updates == STEPS


@in_ci("Trainer")
def test_a_healthy_run_has_the_bits_of_a_protected_one(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when experiments are made with the trainer's own loss: they leave no trace."""
    losses: list[float] = []
    measure = Laboratory.loss

    def note(self: Laboratory, batch: Any) -> float:
        losses.append(measure(self, batch))
        return losses[-1]

    monkeypatch.setattr(Laboratory, "loss", note)
    monkeypatch.setattr(Experiments, "_is_due", lambda self, recorder, step: step % 20 == 15)
    protected = RUNS[trainer](Job(folder=tmp_path / "protect", mode="protect"))
    recovered = RUNS[trainer](Job(folder=tmp_path / "recover"))
    assert recovered.digest == protected.digest
    assert recovered.undone == []
    # Of a trainer that makes its batches by itself no loss of a batch is known.
    assert len(losses) >= 8 or trainer == "GRPOTrainer"
    assert all(0 < loss < 5 for loss in losses)
