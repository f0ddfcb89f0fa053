"""What the page on trainers shows of Lightning and Fabric runs as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.lightning import Module
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from torch.utils.data import DataLoader

PAGE = Path(__file__).parents[3] / "docs" / "trainers.md"


def examples(trainer: str) -> list[str]:
    """The blocks of Python under a heading of the page on trainers."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {trainer}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_model()
    data: Any = batches(6)
    names = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loader": DataLoader(data, batch_size=None),
        "loss_of": loss_of,
    }
    (example,) = examples("Lightning Fabric")
    exec(example, names)
    assert len(journal_of(tmp_path / "runs" / "x1")) == 6


class OfIds(Module):
    """Batches as a tokenizer makes them."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:  # type: ignore[override]
        return super().training_step(batch["input_ids"], batch_idx)


@pytest.mark.filterwarnings("ignore:Starting from v1.9.0.*")
@pytest.mark.filterwarnings("ignore:`max_epochs` was not set.*")
@pytest.mark.filterwarnings("ignore:The number of training batches.*")
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data: Any = [{"input_ids": batch} for batch in batches(2)]
    names: dict[str, Any] = {"model": OfIds(), "loader": DataLoader(data, batch_size=None)}
    first, second = examples("Lightning")
    exec(first.replace("L.Trainer(", "L.Trainer(max_epochs=2, enable_progress_bar=False,"), names)
    assert len(journal_of(tmp_path / "runs" / "x1")) == 4
    names["trainer"].fit_loop.max_epochs = 3
    exec(second, names)
    assert names["trainer"].current_epoch == 3
