"""The loops of the runs: plain torch, the Trainer of Hugging Face, Lightning's Trainer.

In each the plan of the learning rate is a LambdaLR, gradients are clipped to 1, and a change is
called before a step with its number.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

import trimtab
from benchmarks.recover.worlds import Change, Run
from benchmarks.trial.worlds import GPT2_WORLD, LIGHTNING_WORLD

WARMUP = 20
LOOP_OF_ITS_OWN = (
    "gradients accumulated",
    "a term in the loop that batch_loss lacks",
)
"""Changes of a loop that is written by hand; a trainer's loss is its batch_loss."""


@dataclass(kw_only=True)
class Job:
    """One training run."""

    run: Run
    change: Change
    seed: int
    steps: int
    begin: int
    """The number of the first step, for the change."""
    folder: str
    config: trimtab.Config

    def plan(self) -> LambdaLR:
        """Return the schedule of the learning rate: warm-up, then a cosine to a tenth."""
        return LambdaLR(self.run.optimizer, functools.partial(_planned, self.steps))

    def begin_step(self, step: int) -> None:
        """Let the change happen; it multiplies the rate of the plan."""
        self.run.memory.pop("lr", None)
        self.change(self.run, self.begin + step)

    def change_gradients(self) -> None:
        """Change gradients after they were clipped."""
        factor = self.run.memory.get("gradient factor", 1.0)
        for parameter in self.run.model.parameters():
            if parameter.grad is not None and factor != 1.0:
                parameter.grad.mul_(factor)


def _planned(steps: int, step: int) -> float:
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def train(job: Job) -> None:
    """Train the model of a run, in the loop of its world."""
    if job.run.world is GPT2_WORLD:
        _train_with_hugging_face(job)
    elif job.run.world is LIGHTNING_WORLD:
        _train_with_lightning(job)
    else:
        _train_by_hand(job)


def _train_by_hand(job: Job) -> None:
    run, plan = job.run, job.plan()
    stream = torch.Generator().manual_seed(job.seed)
    with trimtab.watch(
        run.model,
        run.optimizer,
        run_dir=job.folder,
        mode="recover",
        batch_loss=run.batch_loss,
        observer=False,
        config=job.config,
    ) as guard:
        for step in range(job.steps):
            job.begin_step(step)
            accumulate = run.memory.get("accumulate", 1)
            for _ in range(accumulate):
                batch = run.world.draw(run.data, stream)
                loss = run.batch_loss(batch)
                if weight := run.memory.get("term"):
                    loss = loss + weight * sum(p.square().mean() for p in run.model.parameters())
                guard.record(loss=loss, batch=batch)
                (loss / accumulate).backward()
            guard.clip_grad_norm_(1.0)
            job.change_gradients()
            run.optimizer.step()
            run.optimizer.zero_grad()
            plan.step()


class _Stream(IterableDataset[Any]):
    """Batches without end; the step that one is for begins when it is drawn."""

    def __init__(self, job: Job, *, begins_steps: bool) -> None:
        self._job, self._begins_steps = job, begins_steps

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        run, stream = self._job.run, torch.Generator().manual_seed(self._job.seed)
        for step in range(self._job.steps + 2):
            if self._begins_steps:
                self._job.begin_step(step)
            yield {"tokens": run.world.draw(run.data, stream)}


def _train_with_hugging_face(job: Job) -> None:
    import transformers

    from trimtab.integrations.hf import TrimtabCallback

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        """Takes batches as they are, and the loss of the run."""

        def get_train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(_Stream(job, begins_steps=True), batch_size=None)

        def compute_loss(self, model: Any, inputs: Any, *unused: Any, **options: Any) -> Any:
            return job.run.batch_loss(inputs["tokens"])

    class Gradients(transformers.TrainerCallback):  # type: ignore[misc]
        """Changes gradients after they were clipped."""

        def on_pre_optimizer_step(self, *unused: Any, **options: Any) -> None:
            job.change_gradients()

    guarded = TrimtabCallback(job.folder, mode="recover", config=job.config, observer=False)
    trainer = Trainer(
        model=job.run.model,
        args=transformers.TrainingArguments(
            output_dir=job.folder,
            max_steps=job.steps,
            max_grad_norm=1.0,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=job.seed,
        ),
        train_dataset=_Stream(job, begins_steps=True),
        optimizers=(job.run.optimizer, job.plan()),
        callbacks=[guarded, Gradients()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


def _train_with_lightning(job: Job) -> None:
    import lightning

    from trimtab.integrations.lightning import TrimtabCallback

    class Module(lightning.LightningModule):  # type: ignore[misc]
        """The model of the run, as a module of Lightning."""

        def __init__(self) -> None:
            super().__init__()
            self.model = job.run.model

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            job.begin_step(batch_idx)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return job.run.batch_loss(batch["tokens"])

        def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
            super().configure_gradient_clipping(*arguments, **options)
            job.change_gradients()

        def configure_optimizers(self) -> Any:
            return [job.run.optimizer], [{"scheduler": job.plan(), "interval": "step"}]

    guarded = TrimtabCallback(job.folder, "recover", config=job.config, observer=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=job.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[guarded],
    )
    trainer.fit(Module(), DataLoader(_Stream(job, begins_steps=False), batch_size=None))
