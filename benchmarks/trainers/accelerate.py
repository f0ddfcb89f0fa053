"""A loop with an Accelerator."""

from pathlib import Path

import torch
from accelerate import Accelerator
from tests.kit.hf import TinyForCausalLM, use_fp16
from torch.utils.data import DataLoader

from benchmarks.trainers.hf import as_rank, data_of
from benchmarks.trainers.setting import BY_HAND, STEPS, Outcome, Plan, Setting, Watching
from trimtab.integrations.accelerate import watch


def train(rank: int, folder: Path, setting: Setting, plan: Plan) -> Outcome:
    """A run of the loop that docs/trainers.md shows."""
    as_rank(rank, setting.ranks)
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
    loader = DataLoader(data_of(setting, plan), batch_size=2)
    prepared = accelerator.prepare(model, optimizer, loader, schedule)
    wrapped, optimizer, loader, schedule = prepared
    watching = Watching()
    with watch(
        accelerator,
        wrapped,
        optimizer,
        run_dir=folder,
        mode=plan.mode or "observe",
        config=BY_HAND,
        enabled=plan.mode is not None,
        state={"scheduler": schedule},
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
            if step.number + 1 == STEPS:
                break
    return watching.outcome(schedule.get_last_lr())
