"""A guard in a loop that belongs to a trainer: a made-up trainer, with the traps of real ones."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.runs import TinyModel, batches, seed_all
from torch import nn, optim

from trimtab.core.config import Config
from trimtab.integrations.trainers.adapter import TrainerAdapter, find_caller

QUIET = Config().override({"ladder.enabled": False, "live.activations": False})


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
        self.seen: list[int] = []
        self.adapter = adapter
        self.run_dir = run_dir

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]

    def fetch(self, iterator: Iterator[Any]) -> list[Any]:
        if self.adapter is None or self.adapter.guard is None:
            return list(islice(iterator, self.accumulate))
        return self.adapter.next_batches(self.loader, iterator, self.accumulate)

    def train(self, steps: int, back: dict[int, int] | None = None, **rollback: Any) -> None:
        back = dict(back or {})
        if self.adapter is not None:
            self.adapter.start(
                self.model,
                self.optimizer,
                run_dir=self.run_dir,
                step=1,
                counters=self,
                state={"scheduler": self.scheduler},
            )
        while self.step < steps:
            iterator = iter(self.loader)
            while self.step < steps and (found := self.fetch(iterator)):
                guard = None if self.adapter is None else self.adapter.guard
                for inputs, targets in found:
                    loss = nn.functional.mse_loss(self.model(inputs), targets)
                    if guard is not None:
                        guard.record(loss=loss, tokens=len(inputs))
                    (loss / len(found)).backward()
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                self.step += 1
                self.seen.append(self.step)
                if (
                    self.step in back
                    and self.adapter is not None
                    and self.adapter.guard is not None
                ):
                    self.adapter.guard.rollback(back.pop(self.step), **rollback)
        if self.adapter is not None:
            self.adapter.end("end of training")


def bits(model: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_that_goes_back_is_the_one_that_never_left(
    accumulate: int, tmp_path: Path
) -> None:
    plain = ToyTrainer(None, tmp_path, accumulate)
    plain.train(36)
    adapter = TrainerAdapter(tmp_path / "run", "recover", config=QUIET)
    watched = ToyTrainer(adapter, tmp_path, accumulate)
    watched.train(36, back={27: 15})

    assert watched.seen == [*range(1, 28), *range(11, 37)]  # snapshots: before steps 1, 11, 21
    assert bits(watched.model) == bits(plain.model)
    assert watched.scheduler.state_dict() == plain.scheduler.state_dict()


def test_skipped_batches_are_not_trained_on(tmp_path: Path) -> None:
    plain = ToyTrainer(None, tmp_path)
    plain.loader = [batch for place, batch in enumerate(batches(80)) if place not in range(12, 15)]
    plain.train(30)
    adapter = TrainerAdapter(tmp_path / "run", "recover", config=QUIET)
    watched = ToyTrainer(adapter, tmp_path)
    watched.train(30, back={20: 11}, skip=range(12, 15))
    assert bits(watched.model) == bits(plain.model)


def test_a_second_epoch_continues_the_positions(tmp_path: Path) -> None:
    plain = ToyTrainer(None, tmp_path)
    plain.loader = batches(8)
    plain.train(20)
    adapter = TrainerAdapter(tmp_path / "run", "protect", config=QUIET)
    watched = ToyTrainer(adapter, tmp_path)
    watched.loader = batches(8)
    watched.train(20)
    assert bits(watched.model) == bits(plain.model)


def test_a_trainer_that_cannot_go_back_is_protected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = TrainerAdapter(tmp_path / "run", "recover", config=QUIET)
    trainer = ToyTrainer(None, tmp_path)
    with caplog.at_level(logging.WARNING, "trimtab"):
        guard = adapter.start(
            trainer.model,
            trainer.optimizer,
            run_dir=tmp_path,
            step=1,
            state={"scheduler": trainer.scheduler},
            cannot_recover="it steps by itself",
        )
    assert guard is not None
    assert guard.recovery is None
    adapter.end("test")
    assert "falls back to 'protect': it steps by itself" in caplog.text


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


def test_a_start_that_fails_leaves_the_trainer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("a bug")

    monkeypatch.setattr("trimtab.live.watch.StepMonitor", fail)
    adapter = TrainerAdapter(tmp_path / "run", "observe")
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters())
    assert adapter.start(model, optimizer, run_dir=tmp_path, step=1) is None
