"""Set-ups inside the trainers of other packages: the guard is made where their loop begins."""

import importlib
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from tests.kit.tiny import VOCABULARY, batches, loss_of, make_model
from tests.live.loops.setups.trial import STEPS, Factor, Learned, SetUp, learned


def hugging_face(watch: Any, factor: Factor) -> Learned:
    """transformers.Trainer: record in compute_loss, which evaluation calls too."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = watch(model, optimizer)
    rows = [{"input_ids": row, "labels": row} for batch in batches(STEPS) for row in batch]

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
        ) -> Any:
            outputs = model(**inputs)
            loss = outputs.loss
            by = factor(self.state.global_step) if model.training else 1.0
            loss = loss * (0.0 if by is None else by)
            guard.record(loss=loss, tokens=inputs["input_ids"].numel())
            return (loss, outputs) if return_outputs else loss

    with tempfile.TemporaryDirectory() as folder, guard:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            eval_strategy="steps",
            eval_steps=4,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            max_grad_norm=0.0,
            seed=1,
        )
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=rows[:8],
            optimizers=(optimizer, schedule),
        )
        trainer.train()
    return learned(model.parameters())


def lightning(watch: Any, factor: Factor) -> Learned:
    """Lightning: record in training_step; its step calls a closure."""
    module = importlib.import_module("lightning")
    tiny = make_model()
    optimizer = torch.optim.AdamW(tiny.parameters(), lr=1e-2)
    guard = watch(tiny, optimizer)

    class Task(module.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tiny = tiny

        def training_step(self, batch: torch.Tensor, number: int) -> Any:
            by = factor(number)
            torch.manual_seed(1000 + number)
            loss = loss_of(self.tiny, batch) * (0.0 if by is None else by)
            guard.record(loss=loss, tokens=batch.numel())
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer

    with guard:
        trainer = module.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data: Any = batches(STEPS)
        loader: Any = torch.utils.data.DataLoader(data, batch_size=None)
        trainer.fit(Task(), loader)
    return learned(tiny.parameters())


def trainer_setups() -> Iterator[SetUp]:
    """One set-up for each trainer."""
    yield SetUp(
        name="transformers.Trainer, evaluation every 4 steps",
        group="trainer",
        train=hugging_face,
        package="transformers",
    )
    yield SetUp(name="Lightning Trainer", group="trainer", train=lightning, package="lightning")
