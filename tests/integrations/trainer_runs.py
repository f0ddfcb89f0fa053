"""Short runs of real trainers in every setting, for `scripts/bench trainers`."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.integrations.hf.runs import Sequences, TinyForCausalLM, make_trainer, use_fp16
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from trimtab.core.config import Config

STEPS, BACK_AT = 16, 10
BY_HAND = Config().override({"ladder.enabled": False, "recover.snapshot_every": 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a trainer is used."""

    ranks: int
    precision: str
    accumulate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run has left on one rank."""

    bits: str
    held: tuple[int, ...]
    """Steps that left parameters and moments as they were."""
    num_steps: int
    """Steps that were done, repeated ones included."""


def train(
    rank: int,
    trainer: str,
    folder: Path,
    mode: str | None,
    setting: Setting,
    has_nan: bool,
    goes_back: bool,
) -> Outcome:
    """One run; without a mode it is not watched."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(setting.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", ACCELERATE_USE_CPU="true")
    # In the sixth step; on the second rank, if there is one.
    at = 5 * setting.accumulate * setting.ranks * 2 + 2 * (setting.ranks - 1)
    data = Sequences(2 * STEPS * setting.accumulate * setting.ranks * 2, (at,) if has_nan else ())
    back = BACK_AT if goes_back else None
    return TRAINERS[trainer](folder, mode, setting, data, back)


class Watching:
    """Compares parameters and moments from step to step."""

    def __init__(self) -> None:
        self._seen: list[str] = []

    def look(self, model: Any, optimizer: Any) -> None:
        optimizer = getattr(optimizer, "optimizer", optimizer)
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().float().numpy().tobytes())
        for state in optimizer.state.values():
            for value in state.values():
                digest.update(torch.as_tensor(value).float().numpy().tobytes())
        self._seen.append(digest.hexdigest())

    def outcome(self, rate: Any) -> Outcome:
        """The bits at the end, with the schedule and the random numbers."""
        held = [n + 1 for n in range(1, len(self._seen)) if self._seen[n] == self._seen[n - 1]]
        rest = repr(rate).encode() + torch.get_rng_state().numpy().tobytes()
        last = hashlib.sha256(self._seen[-1].encode() + rest).hexdigest()
        return Outcome(bits=last, held=tuple(held), num_steps=len(self._seen))


def _train_hf(
    folder: Path, mode: str | None, setting: Setting, data: Sequences, back: int | None
) -> Outcome:
    from trimtab.integrations.hf import TrimtabCallback

    callback = None if mode is None else TrimtabCallback(mode=mode, config=BY_HAND)
    trainer = make_trainer(
        folder,
        callback,
        data=data,
        max_steps=STEPS,
        gradient_accumulation_steps=setting.accumulate,
        bf16=setting.precision == "bf16",
        optim="adamw_torch",
    )
    if setting.precision == "fp16":
        use_fp16(trainer.accelerator, 2.0**10)
    watching = Watching()

    class Look(TrainerCallback):  # type: ignore[misc]
        done = False

        def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            watching.look(trainer.model, trainer.optimizer)
            if state.global_step == back and not self.done and callback and callback.guard:
                self.done = True
                callback.guard.rollback(state.global_step - 2)

    trainer.add_callback(Look())
    trainer.train()
    return watching.outcome(trainer.lr_scheduler.get_last_lr())


def _train_accelerate(
    folder: Path, mode: str | None, setting: Setting, data: Sequences, back: int | None
) -> Outcome:
    from accelerate import Accelerator

    from trimtab.integrations.accelerate import watch

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=setting.accumulate,
        mixed_precision="bf16" if setting.precision == "bf16" else "no",
    )
    if setting.precision == "fp16":
        use_fp16(accelerator, 2.0**10)
    model = TinyForCausalLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    prepared = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2), schedule)
    wrapped, optimizer, loader, schedule = prepared
    watching = Watching()
    with watch(
        accelerator,
        wrapped,
        optimizer,
        run_dir=folder,
        mode=mode or "observe",
        config=BY_HAND,
        scheduler=schedule,
        enabled=mode is not None,
    ) as guard:
        for step in guard.steps(loader, setting.accumulate):
            for batch in step:
                with accelerator.accumulate(wrapped):
                    loss = wrapped(**batch).loss
                    guard.record(loss=loss, tokens=batch["labels"].ne(-100).sum())
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            watching.look(model, optimizer)
            if step.number == back:
                back = None
                guard.rollback(step.number - 2)
            if step.number + 1 == STEPS:
                break
    return watching.outcome(schedule.get_last_lr())


Train = Callable[[Path, str | None, Setting, Sequences, int | None], Outcome]
TRAINERS: dict[str, Train] = {"Trainer": _train_hf, "Accelerate": _train_accelerate}
