"""A guard in a loop with a real Accelerator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tests.integrations.test_adapter import bits
from tests.kit.cases import some_of
from tests.kit.hf import use_fp16
from tests.kit.tiny import journal_of, loss_of, make_model
from torch.utils.data import DataLoader

from trimtab.core.config import Config
from trimtab.integrations.accelerate import watch

SOON = Config().override({"recover.snapshot_every": 4, "live.activations": False})


pytestmark = pytest.mark.usefixtures("fresh_accelerator")


class Loop:
    """A user's loop, as the pages of Accelerate have it; batches at `marked` are not finite."""

    def __init__(
        self, accumulate: int = 1, scale: float | None = None, size: int = 48, *, fused: bool = True
    ) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        if scale is not None:
            use_fp16(self.accelerator, scale)
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        tokens = torch.randint(0, 32, (size, 9), generator=torch.Generator().manual_seed(1))
        loader: Any = DataLoader(tokens, batch_size=2)  # type: ignore[arg-type]
        prepared = self.accelerator.prepare(model, optimizer, loader, schedule)
        self.model, self.optimizer, self.loader, self.scheduler = prepared
        self.accumulate = accumulate
        self.applied: list[bool] = []
        self.skipped: list[bool] = []

    def train(
        self,
        run_dir: Path | None,
        mode: str = "observe",
        *,
        epochs: int = 1,
        undo_at: int | None = None,
        marked: tuple[int, ...] = (),
    ) -> "Loop":
        with watch(
            self.accelerator,
            self.model,
            self.optimizer,
            run_dir=run_dir or "unused",
            mode=mode,
            config=SOON,
            enabled=run_dir is not None,
        ) as guard:
            number = 0
            for _ in range(epochs):
                for batch in self.loader:
                    with self.accelerator.accumulate(self.model):
                        self.train_batch(guard, batch, is_marked=number in marked)
                    if number == undo_at:
                        guard.undo()
                    number += 1
        self.random_state = torch.get_rng_state()
        return self

    def train_batch(self, guard: Any, batch: torch.Tensor, *, is_marked: bool) -> None:
        before = bits(self.model)
        loss = loss_of(self.model, batch) * (torch.nan if is_marked else 1.0)
        guard.record(loss=loss, tokens=batch.numel())
        self.accelerator.backward(loss)
        if self.accelerator.sync_gradients:
            self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        if self.accelerator.sync_gradients:
            self.applied.append(bits(self.model) != before)
            self.skipped.append(self.accelerator.optimizer_step_was_skipped)

    @property
    def everything(self) -> tuple[Any, ...]:
        state = self.optimizer.optimizer.state
        moments = [value.numpy().tobytes() for one in state.values() for value in one.values()]
        return bits(self.model), moments, self.scheduler.get_last_lr(), self.random_state.sum()


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("accumulate", "scale"),
    [pytest.param(1, None, marks=SLOW), pytest.param(2, None, marks=SLOW), (2, 1024.0)],
)
def test_observing_has_the_same_bits_and_the_true_norm(
    accumulate: int, scale: float | None, tmp_path: Path
) -> None:
    plain = Loop(accumulate, scale).train(None)
    watched = Loop(accumulate, scale).train(tmp_path)
    assert watched.everything == plain.everything
    block = journal_of(tmp_path)
    assert len(block) == 24 / accumulate
    assert (block.column("grad_norm").values > 0.5).all()  # from before clipping, and unscaled
    assert (block.column("grad_norm").values < 10).all()
    assert "clip_grad_norm_" not in vars(watched.accelerator)


@pytest.mark.parametrize("scale", [pytest.param(None, marks=SLOW), 1024.0])
def test_a_protected_loop_holds_a_batch_that_is_not_finite(
    scale: float | None, tmp_path: Path
) -> None:
    # In the fifth step. A promoted optimizer must not look to GradScaler like one that the user
    # made fused: then Accelerate would not know that the step was skipped.
    loop = Loop(2, scale, fused=False).train(tmp_path, "protect", marked=(9,))
    assert loop.applied == [step != 4 for step in range(12)]
    assert loop.skipped == [scale is not None and step == 4 for step in range(12)]
    assert list(np.flatnonzero(np.isnan(journal_of(tmp_path).column("loss").values))) == [4]


@pytest.mark.parametrize("accumulate", some_of([1, 2], 2))
def test_an_undo_leaves_schedule_and_micro_batches_as_they_are(
    accumulate: int, tmp_path: Path
) -> None:
    plain = Loop(accumulate, size=46).train(None, epochs=2)
    loop = Loop(accumulate, size=46)
    loop.train(tmp_path, "recover", epochs=2, undo_at=15 * accumulate)
    block = journal_of(tmp_path)
    assert [event.kind for event in block.events].count("undo") == 1
    assert len(loop.applied) == len(plain.applied) == len(block)
    assert loop.scheduler.get_last_lr() == plain.scheduler.get_last_lr()
    assert torch.equal(loop.random_state, plain.random_state)
    assert bits(loop.model) != bits(plain.model)


def test_the_guard_clips_as_the_accelerator_does(tmp_path: Path) -> None:
    loop = Loop(scale=1024.0)
    with watch(loop.accelerator, loop.model, loop.optimizer, run_dir=tmp_path) as guard:
        loss = loss_of(loop.model, next(iter(loop.loader)))
        guard.record(loss=loss)
        loop.accelerator.backward(loss)
        norm = guard.clip_grad_norm_(0.5)  # of gradients that are scaled by 1024
        loop.optimizer.step()
    assert float(norm) < 10
