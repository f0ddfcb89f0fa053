"""What a Trainer may read its data from: trimtab leaves it as it is, and counts it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.hf import Sequences, bits, make_trainer
from tests.kit.tiny import journal_of
from torch.utils.data import IterableDataset

from trimtab.integrations.hf import TrimtabCallback
from trimtab.live.loop.step_facts import StepFacts

pytestmark = [pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"), pytest.mark.slow]


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    """Sequences without a length."""

    def __init__(self, count: int) -> None:
        self._items = Sequences(count).items

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(self._items)


CASES: dict[str, dict[str, Any]] = {
    "in order": {},
    "workers": {"dataloader_num_workers": 2},
    "persistent workers": {"dataloader_num_workers": 2, "dataloader_persistent_workers": True},
    "a stream": {"data": Stream(400)},
    "a stream that ends": {"data": Stream(60)},
    "drop_last": {"dataloader_drop_last": True, "data": Sequences(41)},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    "checkpointed": {"gradient_checkpointing": True},
    "a loss function": {"max_grad_norm": 0.0, "label_smoothing_factor": 0.1},
}


@pytest.mark.parametrize("name", CASES)
def test_the_data_and_the_bits_are_those_of_the_trainer_alone(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": Sequences(80),
        "gradient_accumulation_steps": 2,
        "max_steps": 17,
        "optim": "adamw_torch_fused",
        **CASES[name],
    }
    plain = make_trainer(tmp_path / "plain", **options)
    plain.train()
    watched = make_trainer(tmp_path / "watched", TrimtabCallback(mode="recover"), **options)
    watched.train()
    assert bits(watched) == bits(plain)
    assert watched.state.global_step == plain.state.global_step
    block = journal_of(tmp_path / "watched")
    assert list(block.data_position[:10]) == list(range(0, 20, 2))
    assert block.column("fingerprint").recorded


def test_row_ids_of_the_collator_are_recorded_and_never_reach_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(StepFacts, "add_row_ids", lambda self, ids: seen.extend(ids.tolist()))
    numbered = Sequences(80)
    for number, item in enumerate(numbered.items):
        item["row_ids"] = torch.tensor(number)
    plain = make_trainer(tmp_path / "plain", data=Sequences(80), max_steps=6)
    plain.train()
    options: dict[str, Any] = {"data": numbered, "max_steps": 6, "remove_unused_columns": False}
    watched = make_trainer(tmp_path / "watched", TrimtabCallback(), **options)
    watched.train()
    assert bits(watched) == bits(plain)
    assert len(set(seen)) == len(seen) > 6
