"""One small run in each trainer, in which something happens between two steps.

flip      one bit of a weight, in memory: through a NumPy view, so torch counts no write
nan       the activations of one step are NaN
planned   the user re-initialises the head and multiplies the learning rate by 5
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from tests.kit.tiny import journal_of, loss_of, make_model

STEPS, ONSET, BATCH, RATE = 80, 57, 8, 5e-3
"""It happens after step 57 of 80, and to step 58."""
NUM_TOKENS, LENGTH, NOISE = 30, 9, 0.2
FLIPPED_BIT = 30
"""The highest bit of the exponent: a weight below 1 becomes one of 1e30 or more."""


def batches() -> list[torch.Tensor]:
    """Batches that a tiny model can learn: each token is mostly followed by its one successor."""
    dice = torch.Generator().manual_seed(1)
    successor = torch.randperm(NUM_TOKENS, generator=dice)
    count = STEPS * BATCH
    columns = [torch.randint(0, NUM_TOKENS, (count,), generator=dice)]
    for _ in range(LENGTH - 1):
        other = torch.randint(0, NUM_TOKENS, (count,), generator=dice)
        is_other = torch.rand(count, generator=dice) < NOISE
        columns.append(torch.where(is_other, other, successor[columns[-1]]))
    return list((torch.stack(columns, dim=1) + 1).reshape(STEPS, BATCH, LENGTH))


class Rows(Dataset[dict[str, Any]]):
    """The same as single sequences, as the Hugging Face Trainer reads them."""

    def __init__(self) -> None:
        mask = torch.ones(LENGTH, dtype=torch.long)
        self.items = [
            {"input_ids": row, "attention_mask": mask, "labels": row}
            for row in torch.cat(batches())
        ]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return self.items[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run."""

    folder: Path
    mode: str = "recover"
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a run has left."""

    digest: str
    """A checksum of weights, moments and the random state."""
    is_finite: bool
    num_updates: int
    """Updates that the optimizer has counted."""
    undone: list[int]
    """Updates lost by each undo."""
    num_records: int
    nan_steps: list[int]
    """Records whose loss is NaN, from 0."""


class Happening:
    """What happens to a run: after a step, or in it."""

    def __init__(self, job: Job, embedding: nn.Module, head: nn.Linear) -> None:
        self._fault = job.fault
        self._weight = head.weight
        self._num_done = 0
        embedding.register_forward_hook(self._spoil)

    def after_step(self, optimizer: Any, scheduler: Any) -> None:
        """Call it between two steps."""
        self._num_done += 1
        if self._num_done != ONSET:
            return
        if self._fault == "flip":
            bits = self._weight.detach().numpy().view(np.uint32)
            bits[3, 3] ^= np.uint32(1 << FLIPPED_BIT)
        if self._fault == "planned":
            nn.init.normal_(self._weight, std=0.5)
            scheduler.base_lrs = [5 * rate for rate in scheduler.base_lrs]
            for group in optimizer.param_groups:
                group["lr"] *= 5

    def _spoil(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        # Not where completions are generated: torch refuses to sample from NaN.
        is_due = self._num_done == ONSET and torch.is_grad_enabled()
        return output * torch.nan if self._fault == "nan" and is_due else output


def left_by(job: Job, model: nn.Module, optimizer: Any) -> Left:
    """Read what a run has left in the model, the optimizer and the journal."""
    digest = hashlib.sha256()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    for tensor in [*model.parameters(), *map(torch.as_tensor, moments), torch.get_rng_state()]:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    block = journal_of(job.folder / "run")
    return Left(
        digest=digest.hexdigest(),
        is_finite=all(bool(torch.isfinite(p).all()) for p in model.parameters()),
        num_updates=max(int(state["step"]) for state in optimizer.state.values()),
        undone=[e.facts["updates_lost"] for e in block.events if e.kind == "undo"],
        num_records=len(block),
        nan_steps=np.flatnonzero(np.isnan(block.column("loss").values)).tolist(),
    )


def train_hf(job: Job) -> Left:
    """Train with the Hugging Face Trainer."""
    from tests.kit.hf import TinyForCausalLM, make_trainer

    return _train_hf(job, make_trainer, model=TinyForCausalLM())


def train_sft(job: Job) -> Left:
    """Train with TRL's SFTTrainer."""
    from tests.kit.hf import make_sft

    torch.manual_seed(0)
    return _train_hf(job, make_sft)


def train_grpo(job: Job) -> Left:
    """Train with TRL's GRPOTrainer, which generates the completions that it learns from."""
    from tests.kit.hf import make_grpo

    return _train_hf(job, make_grpo)


def _train_hf(job: Job, make: Callable[..., Any], **options: Any) -> Left:
    from transformers import TrainerCallback

    from trimtab.integrations.hf import TrimtabCallback

    trainer = make(
        job.folder / "out",
        TrimtabCallback(job.folder / "run", mode=job.mode),
        data=Rows(),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="constant_with_warmup",
        logging_steps=20,
        optim="adamw_torch",
        **options,
    )
    happening = Happening(job, trainer.model.model.embed_tokens, trainer.model.lm_head)

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *unused: Any, **more: Any) -> None:
            happening.after_step(trainer.optimizer, trainer.lr_scheduler)

    trainer.add_callback(Steps())
    trainer.train()
    assert trainer.state.global_step == STEPS
    return left_by(job, trainer.model, trainer.optimizer.optimizer)


def train_accelerate(job: Job) -> Left:
    """Train in a loop with an Accelerator."""
    from accelerate import Accelerator

    from trimtab.integrations.accelerate import watch

    accelerator = Accelerator(cpu=True)
    model = make_model()
    bare = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(bare, lambda step: 1.0)
    happening = Happening(job, model.embed, model.head)
    wrapped, optimizer, scheduler = accelerator.prepare(model, bare, schedule)
    with watch(
        accelerator,
        wrapped,
        optimizer,
        run_dir=job.folder / "run",
        mode=job.mode,
        batch_loss=lambda batch: loss_of(wrapped, batch),
    ) as guard:
        for batch in batches():
            loss = loss_of(wrapped, batch)
            guard.record(loss=loss, tokens=batch.numel(), batch=batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            happening.after_step(bare, schedule)
    return left_by(job, model, bare)


def train_lightning(job: Job) -> Left:
    """Train with the Lightning Trainer."""
    import lightning as L
    from torch.utils.data import DataLoader

    from tests.kit.lightning import Module, Run, watched

    class Learns(Module):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    module = Learns()
    happening = Happening(job, module.model.embed, module.model.head)

    class Steps(L.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
            scheduler = trainer.lr_scheduler_configs[0].scheduler
            happening.after_step(trainer.optimizers[0], scheduler)

    data: Any = batches()
    run = Run(steps=STEPS, clip=1.0, make=lambda: module)
    callbacks = [watched(job.folder / "run", job.mode), Steps()]
    _, trainer = run.fit(callbacks, train_dataloaders=DataLoader(data, batch_size=None))
    assert trainer.global_step == STEPS
    assert len(module.seen) == STEPS  # experiments call training_step too
    return left_by(job, module, trainer.optimizers[0])


def train_fabric(job: Job) -> Left:
    """Train in a loop with Lightning Fabric."""
    import lightning as L
    from torch.utils.data import DataLoader

    import trimtab

    fabric = L.Fabric(accelerator="cpu", devices=1)
    bare = make_model()
    happening = Happening(job, bare.embed, bare.head)
    model, optimizer = fabric.setup(bare, torch.optim.AdamW(bare.parameters(), lr=RATE))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda step: 1.0)
    data: Any = batches()
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=None))
    with trimtab.watch(
        model,
        optimizer,
        run_dir=job.folder / "run",
        mode=job.mode,
        batch_loss=lambda batch: loss_of(model, batch),
    ) as guard:
        for batch in loader:
            loss = loss_of(model, batch)
            guard.record(loss=loss, tokens=batch.numel(), batch=batch)
            fabric.backward(loss)
            norm = fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
            guard.record(grad_norm=norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            happening.after_step(optimizer.optimizer, schedule)
    return left_by(job, bare, optimizer.optimizer)


RUNS: dict[str, Callable[[Job], Left]] = {
    "Trainer": train_hf,
    "SFTTrainer": train_sft,
    "Accelerate": train_accelerate,
    "Lightning": train_lightning,
    "Fabric": train_fabric,
    "GRPOTrainer": train_grpo,
}
