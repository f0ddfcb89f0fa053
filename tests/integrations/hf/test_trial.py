"""The trial of states in a Hugging Face Trainer, which gives `batch_loss` by itself."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tests.kit.hf import Sequences, bits, make_trainer
from tests.kit.tiny import journal_of
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

from trimtab.core.config import Config
from trimtab.core.events import TRIAL, UNDO
from trimtab.integrations.hf import TrimtabCallback
from trimtab.live.recover.trial_rule import TrialSchedule

AT, STEPS = 80, 135

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


class Text(Sequences):
    """Sequences in which most tokens follow from the one before."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(2)
        tokens = torch.randint(0, 60, (4 * STEPS, 17), generator=dice)
        for at in range(1, 17):
            is_known = torch.rand(len(tokens), generator=dice) < 0.8
            tokens[:, at] = torch.where(is_known, tokens[:, at - 1] * 3 % 60 + 1, tokens[:, at])
        self.items = [{"input_ids": row, "labels": row} for row in tokens]


class TooFast(TrainerCallback):  # type: ignore[misc]
    """Multiplies the learning rate for five steps, after the scheduler has set it."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if 0 <= state.global_step - AT < 5:
            for group in given["optimizer"].param_groups:
                group["lr"] *= 100


def trained(folder: Path, rollback: str, *, fault: bool, steps: int = STEPS) -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    settings = {"recover.snapshot_every": 10, "recover.rollback": rollback}
    callback = TrimtabCallback(mode="recover", config=Config().override(settings), observer=False)
    trainer = make_trainer(
        *(folder, callback),
        data=Text(),
        model=GPT2LMHeadModel(config),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
    )
    if fault:
        trainer.add_callback(TooFast())
    trainer.train()
    return trainer


def test_a_spoilt_state_is_restored(tmp_path: Path) -> None:
    trained(tmp_path, "auto", fault=True)
    (undo,) = [e for e in journal_of(tmp_path).events if e.kind == UNDO]
    assert undo.facts["gain"] > 0.1
    assert undo.facts["to_step"] <= AT


@pytest.mark.slow
def test_a_trial_that_closes_leaves_the_bits(tmp_path: Path) -> None:
    def often(self: TrialSchedule, update: int, sigmas: float) -> bool:
        return update % 30 == 20

    with mock.patch.object(TrialSchedule, "opens", often):
        tried = trained(tmp_path / "tried", "ask", fault=False, steps=60)
    plain = trained(tmp_path / "plain", "off", fault=False, steps=60)
    assert [e for e in journal_of(tmp_path / "tried").events if e.kind == TRIAL]
    assert bits(tried) == bits(plain)
