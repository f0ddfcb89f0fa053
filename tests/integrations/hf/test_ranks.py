"""The callback in a Hugging Face Trainer on two ranks."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations.hf.test_callback import SOON, At, bits_of_state, logged, undo, undone_in
from tests.kit.hf import Sequences, bits, make_trainer
from tests.kit.tiny import journal_of

from trimtab.integrations.hf import TrimtabCallback
from trimtab.lab.trainer.local_ranks import run_ranks


def as_rank(rank: int) -> None:
    """What torchrun sets."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", ACCELERATE_USE_CPU="true")


def train(rank: int, folder: Path, mode: str | None, options: dict[str, Any]) -> dict[str, Any]:
    as_rank(rank)
    options = dict(options)
    undo_at = options.pop("undo_at", 0)
    marked = options.pop("marked", ())
    callback = None if mode is None else TrimtabCallback(mode=mode, config=SOON)
    trainer = make_trainer(
        folder, callback, data=Sequences(160, marked), optim="adamw_torch_fused", **options
    )
    held: list[str] = []
    at = At(undo_at, lambda: undo(callback) if callback else None)
    trainer.add_callback(at)

    class Look(At):
        def on_optimizer_step(self, *unused: Any, **more: Any) -> None:
            held.append(bits_of_state(trainer))

    trainer.add_callback(Look(0, lambda: None))
    trainer.train()
    assert trainer.args.world_size == 2
    return {
        "bits": bits(trainer),
        "loss": logged(trainer, "loss"),
        "steps": at.steps,
        "state": [p.detach().numpy().tobytes() for p in trainer.model.parameters()],
        "held": [step + 1 for step in range(1, len(held)) if held[step] == held[step - 1]],
    }


@pytest.mark.parametrize("accumulate", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_two_ranks_have_the_same_bits_and_one_true_loss(accumulate: int, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": accumulate}
    plain = run_ranks(train, 2, tmp_path / "plain", None, options)
    watched = run_ranks(train, 2, tmp_path / "watched", "observe", options)
    assert [found["bits"] for found in watched] == [found["bits"] for found in plain]
    loss = journal_of(tmp_path / "watched").column("loss").values
    np.testing.assert_allclose(loss, plain[0]["loss"], rtol=1e-4)


@pytest.mark.slow
def test_two_ranks_hold_a_batch_that_only_one_of_them_has(tmp_path: Path) -> None:
    found = run_ranks(train, 2, tmp_path, "protect", {"marked": (22,)})  # step 6, second rank
    assert [one["held"] for one in found] == [[6], [6]]


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_ranks_undo_together(accumulate: int, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": accumulate, "max_steps": 18, "undo_at": 11}
    one, other = run_ranks(train, 2, tmp_path, "recover", options)
    assert one["state"] == other["state"]
    assert one["steps"] == other["steps"] == list(range(1, 19))
    assert len(undone_in(tmp_path)) == 1
