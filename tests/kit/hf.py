"""Runs of real Hugging Face trainers on a tiny Llama, for the tests."""

import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY = 64
MARKED = VOCABULARY - 1
"""A token that makes the loss of its batch NaN."""


class TinyForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """Attention dropout draws random numbers; a marked batch has no finite loss."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                attention_dropout=0.1,
                attn_implementation="eager",
            )
        )

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **options: Any
    ) -> Any:
        outputs = super().forward(
            input_ids=input_ids, attention_mask=attention_mask, labels=labels, **options
        )
        if outputs.loss is not None:
            is_marked = (input_ids == MARKED).any()
            outputs.loss = outputs.loss * torch.where(is_marked, torch.nan, 1.0)
        return outputs


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Padded sequences of different lengths; those at the marked places have no finite loss."""

    def __init__(self, count: int, marked: tuple[int, ...] = ()) -> None:
        dice = torch.Generator().manual_seed(5)
        self.items = []
        for place in range(count):
            length = int(torch.randint(4, 13, (), generator=dice))
            ids = torch.randint(1, MARKED, (12,), generator=dice)
            if place in marked:
                ids[0] = MARKED
            mask = torch.arange(12) < length
            self.items.append(
                {
                    "input_ids": ids,
                    "attention_mask": mask.long(),
                    "labels": torch.where(mask, ids, -100),
                }
            )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return self.items[place]


SMALL_RUN: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
}
"""Arguments of every small run on the CPU: each step is logged, nothing else is written."""


def make_trainer(
    folder: Path,
    callback: Any = None,
    *,
    data: Sequences | None = None,
    kind: type[Trainer] = Trainer,
    shuffle: bool = False,
    model: Any = None,
    **arguments: Any,
) -> Any:
    """A Trainer of two sequences a batch that logs every step and reads its data in order."""
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        **SMALL_RUN,
        "max_steps": 12,
        "seed": 3,
        **arguments,
    }
    trainer = kind(
        model=TinyForCausalLM() if model is None else model,
        args=TrainingArguments(**settings),
        train_dataset=data or Sequences(96),
        eval_dataset=Sequences(4),
        callbacks=[] if callback is None else [callback],
    )
    if not shuffle:
        read_in_order(trainer)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def make_sft(
    folder: Path, callback: Any, *, data: Sequences | None = None, **arguments: Any
) -> Any:
    """An SFTTrainer of TRL on the same model; the packages are imported here, as TRL takes long."""
    from trl import SFTConfig, SFTTrainer

    rows: list[dict[str, Any]] = [
        {"input_ids": item["input_ids"][item["attention_mask"] == 1].tolist()}
        for item in (data or Sequences(96)).items
    ]
    settings = {"max_steps": 14, "optim": "adamw_torch_fused", "max_length": 32, **arguments}
    return _make_trl(SFTTrainer, SFTConfig, folder, callback, rows, settings)


def make_grpo(folder: Path, callback: Any, *, data: Any = None, **arguments: Any) -> Any:
    """A GRPOTrainer of TRL on the same model; a completion is better with more even tokens."""
    from trl import GRPOConfig, GRPOTrainer

    def reward(completion_ids: list[list[int]], **unused: Any) -> list[float]:
        return [sum(1.0 - token % 2 for token in ids) / len(ids) for ids in completion_ids]

    rows = [{"prompt": f"w{2 + number % 60} w{3 + number % 60}"} for number in range(96)]
    settings = {"num_generations": 4, "max_completion_length": 4, **arguments}
    return _make_trl(GRPOTrainer, GRPOConfig, folder, callback, rows, settings, reward_funcs=reward)


def make_dpo(folder: Path, callback: Any, **arguments: Any) -> Any:
    """A DPOTrainer of TRL on the same model, with a copy of it as reference."""
    from trl import DPOConfig, DPOTrainer

    rows = [
        {"prompt": f"w{2 + n % 60}", "chosen": f" w{2 + n % 30}", "rejected": f" w{40 + n % 20}"}
        for n in range(96)
    ]
    return _make_trl(
        DPOTrainer, DPOConfig, folder, callback, rows, arguments, ref_model=_plain_llama()
    )


def _make_trl(
    kind: Any,
    config: Any,
    folder: Path,
    callback: Any,
    rows: list[dict[str, Any]],
    arguments: dict[str, Any],
    **parts: Any,
) -> Any:
    import datasets

    datasets.disable_progress_bars()
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        **SMALL_RUN,
        "bf16": False,
        "gradient_checkpointing": False,
        **arguments,
    }
    trainer = kind(
        model=_plain_llama(),
        args=config(**settings),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=_tokenizer(),
        callbacks=[] if callback is None else [callback],
        **parts,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def _plain_llama() -> Any:
    """The model of TRL's trainers, with the same weights each time."""
    return transformers.LlamaForCausalLM(TinyForCausalLM().config)


def _tokenizer() -> Any:
    """A tokenizer of the words w2 to w63."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number for number in range(2, 64)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )


def read_in_order(trainer: Any) -> None:
    trainer._get_train_sampler = lambda *unused: torch.utils.data.SequentialSampler(
        trainer.train_dataset
    )


def use_fp16(accelerator: Any, scale: float) -> None:
    """fp16 with loss scaling on the CPU, where accelerate has neither; before `prepare`."""
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"


def bits(trainer: Any) -> str:
    """A checksum of parameters, optimizer state, schedule and random numbers."""
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().float().numpy().tobytes())
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    for state in optimizer.state_dict()["state"].values():
        for name, value in sorted(state.items()):
            digest.update(name.encode() + torch.as_tensor(value).float().numpy().tobytes())
    digest.update(repr(trainer.lr_scheduler.get_last_lr()).encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()
