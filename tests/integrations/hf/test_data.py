"""What a Trainer may read its data from, when the run goes back or is resumed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.hf.test_callback import BY_HAND, At, go_back, stop
from tests.kit.hf import Sequences, bits, make_trainer
from torch.utils.data import IterableDataset

from trimtab.integrations.hf import TrimtabCallback, last_good_checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.slow,
]


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
def test_a_trainer_that_goes_back_is_the_one_that_never_left(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": Sequences(80),
        "gradient_accumulation_steps": 2,
        "max_steps": 17,
        "optim": "adamw_torch_fused",
        **CASES[name],
    }
    plain = make_trainer(tmp_path / "plain", **options)
    plain.train()
    callback = TrimtabCallback(mode="recover", config=BY_HAND)
    watched = make_trainer(tmp_path / "watched", callback, **options)
    at = At(12, lambda: go_back(callback, 10))
    watched.add_callback(at)
    watched.train()
    assert len(at.steps) > 17
    assert bits(watched) == bits(plain)
    assert watched.state.global_step == plain.state.global_step


@pytest.mark.parametrize("size", [96, 20])  # one epoch, or several of 10 steps
def test_a_resume_continues_after_batches_that_were_skipped(size: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": Sequences(size),
        "optim": "adamw_torch_fused",
        "save_strategy": "steps",
        "save_steps": 10,
        "max_steps": 16,
    }

    def start(name: str) -> tuple[Any, TrimtabCallback]:
        callback = TrimtabCallback(mode="recover", config=BY_HAND)
        return make_trainer(tmp_path / name, callback, **options), callback

    whole, callback = start("whole")
    whole.add_callback(At(8, lambda: go_back(callback, 5, skip=(5, 6))))
    whole.train()
    first, other = start("run")
    first.add_callback(At(8, lambda: go_back(other, 5, skip=(5, 6))))
    first.add_callback(StopAt(11, first))
    first.train()
    second, _ = start("run")
    second.train(resume_from_checkpoint=last_good_checkpoint(tmp_path / "run"))
    assert (first.state.global_step, second.state.global_step) == (11, 16)
    assert bits(second) == bits(whole)


class StopAt(At):
    """Stops when a step is reached, whatever was done before."""

    def __init__(self, step: int, trainer: Any) -> None:
        super().__init__(0, lambda: None)
        self._at, self._trainer = step, trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if state.global_step == self._at:
            stop(self._trainer)
