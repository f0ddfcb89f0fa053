"""The runs that have to recover, one function per trainer: (checksum, held-out loss)."""

from typing import Any

import torch

from tests.kit.tiny import loss_of, make_model
from tests.kit.trainer_jobs.chains import HELD_OUT, Rows, sequences
from tests.kit.trainer_jobs.job import (
    BATCH,
    SAVE_EVERY,
    STEPS,
    Disturb,
    Job,
    digest,
    held_out_loss,
)

RATE = 1e-2
MARKER = 31
Result = tuple[str, float]


def spoiled(loss: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """NaN if the batch is marked, without a host read."""
    return loss * torch.where((batch == MARKER).any(), torch.nan, 1.0)


def train_hf(job: Job) -> Result:
    """The Hugging Face Trainer."""
    from transformers import TrainerCallback

    from tests.kit.hf import MARKED, TinyForCausalLM, make_trainer
    from trimtab.integrations.hf import TrimtabCallback, last_good_checkpoint

    data = [Job(**_fields(job) | {"rank": rank}).data(MARKED) for rank in range(job.ranks)]
    rows = Rows([batch for step in zip(*data, strict=True) for batch in step])
    callback = TrimtabCallback(job.folder / "run", mode="recover")
    trainer = make_trainer(
        job.folder / "out",
        callback,
        data=rows,  # type: ignore[arg-type]
        model=TinyForCausalLM(job.seed),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        logging_steps=50,
        save_strategy="steps",
        save_steps=SAVE_EVERY,
        seed=job.seed,
        optim="adamw_torch_fused",
        remove_unused_columns=False,
    )
    disturb = Disturb(job)

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            head = trainer.model.lm_head.weight
            disturb.after_step(state.global_step, head, callback.guard, 1)

    trainer.add_callback(Steps())
    trainer.train(resume_from_checkpoint=last_good_checkpoint(job.folder / "run"))
    ids = sequences(HELD_OUT, 512)
    model = trainer.accelerator.unwrap_model(trainer.model)
    loss = held_out_loss(model, lambda: model(input_ids=ids, labels=ids).loss)
    return digest(model, trainer.optimizer.optimizer), loss


def train_accelerate(job: Job) -> Result:
    """A loop with an Accelerator, and the checkpoints of trimtab."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    import trimtab
    from trimtab.integrations.accelerate import watch

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(job.seed)
    model = make_model(job.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - min(step / STEPS, 1))
    loader: Any = DataLoader(job.data(MARKER), batch_size=None)  # type: ignore[arg-type]
    wrapped, accelerated = accelerator.prepare(model, optimizer)
    checkpoints = trimtab.Checkpoints(
        wrapped, optimizer, run_dir=job.folder / "run", scheduler=schedule
    )
    resumed = checkpoints.resume()
    disturb = Disturb(job)
    with watch(
        accelerator,
        wrapped,
        accelerated,
        run_dir=job.folder / "run",
        mode="recover",
        checkpoints=checkpoints,
        batch_loss=lambda batch: spoiled(loss_of(wrapped, batch), batch),
        facts={"step": resumed.step},
        state={"scheduler": schedule},
    ) as guard:
        for step in guard.steps(loader):
            for batch in step:
                with accelerator.accumulate(wrapped):
                    loss = spoiled(loss_of(wrapped, batch), batch)
                    guard.record(loss=loss, tokens=batch.numel())
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                    accelerated.step()
                    schedule.step()
                    accelerated.zero_grad()
            number = step.number + 1
            disturb.after_step(number, model.head.weight, guard, 0)
            if number % SAVE_EVERY == 0:
                guard.checkpoint()
            if number == STEPS:
                break
    ids = sequences(HELD_OUT, 512)
    return digest(model, optimizer), held_out_loss(model, lambda: loss_of(model, ids))


def train_lightning(job: Job) -> Result:
    """The Lightning Trainer, with a loader that can be resumed."""
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    from tests.kit.lightning import Module, Run, watched
    from trimtab.integrations.lightning import last_good_checkpoint

    class Learns(Module):
        def __init__(self) -> None:
            super().__init__(planned=STEPS, lr=RATE, fused=True)
            self.model = make_model(job.seed)
            self.model.dropout.p = 0.0  # Lightning saves no random numbers

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return spoiled(self.loss_of(batch), batch)

    module = Learns()
    run_dir = job.folder / "run"
    callback = watched(
        run_dir, "recover", batch_loss=lambda b: spoiled(loss_of(module.model, b), b)
    )
    disturb = Disturb(job)

    class Steps(L.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            disturb.after_step(trainer.global_step, module.model.head.weight, callback.guard, 0)

    options: dict[str, Any] = {"enable_checkpointing": True, "use_distributed_sampler": False}
    if job.ranks > 1:
        options["strategy"] = "ddp"
    saves = ModelCheckpoint(job.folder / "own", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    run = Run(steps=STEPS, ranks=job.ranks, make=lambda: module, clip=1.0, trainer=options)
    data: Any = job.data(MARKER)
    _, trainer = run.fit(
        [callback, saves, Steps()],
        train_dataloaders=StatefulDataLoader(data, batch_size=None),
        ckpt_path=last_good_checkpoint(run_dir),
    )
    ids = sequences(HELD_OUT, 512)
    loss = held_out_loss(module, lambda: loss_of(module.model, ids))
    return digest(module, trainer.optimizers[0]), loss


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__slots__}


RUNS = {"Trainer": train_hf, "Accelerate": train_accelerate, "Lightning": train_lightning}
