"""What the page on trainers shows of the Hugging Face Trainer and Accelerate runs as it stands."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.lightning.test_pages import examples
from tests.kit.hf import Sequences, TinyForCausalLM
from tests.kit.tiny import journal_of
from torch.utils.data import DataLoader
from transformers import TrainingArguments

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")


def test_huggingface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = TrainingArguments(
        output_dir="out",
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    names: dict[str, Any] = {"model": TinyForCausalLM(), "args": args, "dataset": Sequences(16)}
    first, second = examples("Hugging Face Trainer and TRL")
    exec(first, names)
    assert list(journal_of(tmp_path / "runs" / "x1").step) == [1, 2, 3, 4]
    names["trainer"].args.max_steps = 6
    exec(second, names)
    assert list(journal_of(tmp_path / "runs" / "x1").step) == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("fresh_accelerator")
def test_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = TinyForCausalLM()
    optimizer = torch.optim.AdamW(model.parameters())
    names: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "loader": DataLoader(Sequences(16), batch_size=2),
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
    }
    first, register = examples("Accelerate")
    exec(first.replace("Accelerator(", "Accelerator(cpu=True, "), names)
    assert len(journal_of(tmp_path / "runs" / "x1")) == 2
    exec(register, names)
    names["accelerator"].save_state(tmp_path / "state")
    names["accelerator"].load_state(tmp_path / "state")
