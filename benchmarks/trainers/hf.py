"""The Hugging Face Trainer, and TRL's SFTTrainer."""

import os
from pathlib import Path
from typing import Any

import torch
from tests.kit.hf import MARKED, Sequences, make_sft, make_trainer, read_in_order, use_fp16
from transformers import TrainerCallback

from benchmarks.trainers.setting import (
    BY_HAND,
    NAN_STEP,
    STEPS,
    Outcome,
    Plan,
    Setting,
    Watching,
)
from trimtab.integrations.hf import TrimtabCallback


def train_trainer(rank: int, folder: Path, setting: Setting, plan: Plan) -> Outcome:
    """A run of the Trainer."""
    as_rank(rank, setting.ranks)
    callback = _callback(plan)
    trainer = make_trainer(folder, callback, data=data_of(setting, plan), **_arguments(setting))
    return _train(trainer, callback, setting, plan)


def train_sft(rank: int, folder: Path, setting: Setting, plan: Plan) -> Outcome:
    """A run of TRL's SFTTrainer."""
    as_rank(rank, setting.ranks)
    callback = _callback(plan)
    torch.manual_seed(0)
    arguments = _arguments(setting)
    trainer = make_sft(folder, callback, data=data_of(setting, plan), **arguments)
    read_in_order(trainer)
    # Not by the loss of the model: SFTTrainer may compute its own from the hidden states.
    trainer.model.model.register_forward_hook(_spoil, with_kwargs=True)
    return _train(trainer, callback, setting, plan)


def as_rank(rank: int, ranks: int) -> None:
    """What torchrun sets."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", ACCELERATE_USE_CPU="true")


def data_of(setting: Setting, plan: Plan) -> Sequences:
    """Enough sequences; the first one of the last rank in one step may be marked."""
    per_step = 2 * setting.accumulate * setting.ranks
    at = (NAN_STEP - 1) * per_step + 2 * (setting.ranks - 1)
    return Sequences(2 * STEPS * per_step, (at,) if plan.has_nan else ())


def _callback(plan: Plan) -> TrimtabCallback | None:
    return None if plan.mode is None else TrimtabCallback(mode=plan.mode, config=BY_HAND)


def _arguments(setting: Setting) -> dict[str, Any]:
    return {
        "max_steps": STEPS,
        "gradient_accumulation_steps": setting.accumulate,
        "bf16": setting.precision == "bf16",
        "optim": "adamw_torch",
    }


def _spoil(module: Any, args: Any, options: dict[str, Any], output: Any) -> Any:
    ids = options["input_ids"] if "input_ids" in options else args[0]
    factor = torch.where((ids == MARKED).any(), torch.nan, 1.0)
    output.last_hidden_state = output.last_hidden_state * factor
    return output


def _train(trainer: Any, callback: Any, setting: Setting, plan: Plan) -> Outcome:
    if setting.precision == "fp16":
        use_fp16(trainer.accelerator, 2.0**10)
    watching = Watching()

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            watching.look(trainer.model, trainer.optimizer)

    trainer.add_callback(Look())
    trainer.train()
    return watching.outcome(trainer.lr_scheduler.get_last_lr())
