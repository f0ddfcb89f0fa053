"""A guard in a loop that belongs to a trainer: a made-up trainer, with the traps of real ones."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.runs import TinyModel, batches, seed_all
from tests.kit.tiny import journal_of
from torch import nn, optim

from trimtab.core.config import Config
from trimtab.integrations.trainer_adapter import TrainerAdapter, find_caller
from trimtab.live.step_iterator import StepIterator

SOON = Config().override({"recover.snapshot_every": 4, "live.activations": False})


class ToyTrainer:
    """Counts its own steps and reads its own epochs, as trainers do."""

    def __init__(self, adapter: TrainerAdapter | None, run_dir: Path, accumulate: int = 1) -> None:
        seed_all()
        self.model = TinyModel()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 60)
        self.loader = batches(80)
        self.accumulate = accumulate
        self.step = 0
        self.adapter = adapter or TrainerAdapter(run_dir)
        self.is_watched = adapter is not None
        self.run_dir = run_dir

    def train(self, steps: int) -> None:
        adapter = self.adapter
        if self.is_watched:
            adapter.start(self.model, self.optimizer, run_dir=self.run_dir, step=1)
        while self.step < steps:
            adapter.begin_data(self.loader)
            iterator = iter(self.loader)
            while self.step < steps and (found := list(islice(iterator, self.accumulate))):
                for place, (inputs, targets) in enumerate(found):
                    adapter.note_batch((inputs, targets), begins_step=place == 0, seconds=0.5)
                    loss = nn.functional.mse_loss(self.model(inputs), targets)
                    if adapter.guard is not None:
                        adapter.guard.record(loss=loss, tokens=len(inputs))
                    (loss / len(found)).backward()
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                self.step += 1
        adapter.end("end of training")


def bits(model: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("mode", ["observe", "recover"])
def test_batches_are_counted_over_epochs_and_the_bits_are_those_without_trimtab(
    mode: str, accumulate: int, tmp_path: Path
) -> None:
    plain = ToyTrainer(None, tmp_path, accumulate)
    plain.loader = batches(9)
    plain.train(20)
    watched = ToyTrainer(TrainerAdapter(tmp_path / "run", mode, config=SOON), tmp_path, accumulate)
    watched.loader = batches(9)
    watched.train(20)
    assert bits(watched.model) == bits(plain.model)
    block = journal_of(tmp_path / "run")
    per_epoch = range(0, 9, accumulate)
    expected = [9 * epoch + place for epoch in range(4) for place in per_epoch]
    assert block.data_position.tolist() == expected[:20]
    assert block.step.tolist() == list(range(1, 21))
    sizes = [min(accumulate, 9 - place % 9) for place in expected[:20]]
    waited = block.column("data_seconds").values.tolist()
    assert waited == pytest.approx([0.5 * size for size in sizes], abs=0.1)
    assert block.column("fingerprint").recorded


def test_a_batch_that_cannot_be_noted_does_not_reach_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StepIterator, size: int | None = None) -> None:
        raise OSError("a bug")

    monkeypatch.setattr(StepIterator, "next_step", fail)
    trainer = ToyTrainer(TrainerAdapter(tmp_path / "run", "observe"), tmp_path)
    trainer.train(4)
    assert trainer.step == 4


@pytest.mark.parametrize("mode", ["observe", "protect", "recover"])
def test_the_loss_of_a_batch_is_given_in_recover_only_and_that_of_the_user_wins(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "trimtab.integrations.trainer_adapter.watch",
        lambda *unused, **options: given.append(options.get("batch_loss")),
    )
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters())
    for options in ({}, {"batch_loss": max}):
        adapter = TrainerAdapter(tmp_path, mode, **options)
        adapter.start(model, optimizer, run_dir=tmp_path, step=1, batch_loss=min)
    assert given == [min if mode == "recover" else None, max]


def test_what_was_replaced_comes_back_and_training_again_does_not_replace_twice(
    tmp_path: Path,
) -> None:
    class Owner:
        def method(self, value: int) -> int:
            return value

    adapter = TrainerAdapter(tmp_path, "observe")
    owner, patched = Owner(), Owner()
    mine = patched.method = lambda value: -value  # type: ignore[method-assign]
    for one in (owner, patched):
        adapter.replace(one, "method", lambda original, value: 10 * original(value))
    assert (owner.method(1), patched.method(1)) == (10, -10)
    adapter.end("an exception")
    assert "method" not in vars(owner)
    assert patched.method is mine


def test_a_callback_finds_who_calls_it() -> None:
    class Caller:
        def call(self) -> object:
            return next(find_caller(Caller) for _ in range(1))

    caller = Caller()
    assert caller.call() is caller
    assert find_caller(Caller) is None
