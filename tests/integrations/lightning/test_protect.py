"""Protecting a run of the Lightning Trainer: a NaN batch changes nothing."""

from pathlib import Path

import pytest
import torch
from tests.kit.lightning import Module, Run, in_settings, watched
from tests.kit.tiny import journal_of

from trimtab.core.config import Config
from trimtab.core.errors import NonFiniteRun
from trimtab.integrations.lightning import TrimtabCallback
from trimtab.live.arithmetic import device_path
from trimtab.selftest.promises import READS, Counting

NAN_STEP = 5


class Keeper(Module):
    """Keeps weights and moments from before and after every step."""

    def __init__(self, accumulate: int) -> None:
        super().__init__(nan_at=NAN_STEP * accumulate)
        self.history: list[list[torch.Tensor]] = []

    def on_train_batch_end(self, *args: object) -> None:
        optimizer = self.trainer.optimizers[0]
        moments = [optimizer.state[p]["exp_avg"] for p in self.parameters() if optimizer.state[p]]
        steps = [optimizer.state[p]["step"] for p in self.parameters() if optimizer.state[p]]
        self.history.append([t.detach().clone() for t in [*self.parameters(), *moments, *steps]])


@in_settings(("32-true", 1), ("bf16-mixed", 4), ("16-mixed", 4))
def test_a_nan_batch_leaves_weights_and_moments_as_they_were(
    precision: str, accumulate: int, tmp_path: Path
) -> None:
    made: list[Keeper] = []

    def make() -> Keeper:
        made.append(Keeper(accumulate))
        return made[-1]

    Run(precision=precision, accumulate=accumulate, make=make).fit([watched(tmp_path, "protect")])
    ends = [state for at, state in enumerate(made[0].history, 1) if at % accumulate == 0]
    assert len(ends) == 8
    for step in range(1, 8):
        is_held = all(map(torch.equal, ends[step - 1], ends[step]))
        assert is_held == (step == NAN_STEP)
    assert all(torch.isfinite(tensor).all() for tensor in ends[-1])
    losses = journal_of(tmp_path).column("loss").values
    assert [step for step in range(8) if losses[step] != losses[step]] == [NAN_STEP]


@pytest.mark.parametrize("mode", ["observe", "protect"])
@pytest.mark.parametrize(
    ("precision", "clip"),
    [
        ("32-true", 0.5),
        # Lightning refuses to clip with a fused optimizer in mixed precision.
        pytest.param("bf16-mixed", None, marks=pytest.mark.slow),
    ],
)
def test_no_host_read_is_added(
    precision: str, clip: float | None, mode: str, tmp_path: Path
) -> None:
    def count(steps: int, callbacks: list[TrimtabCallback]) -> int:
        run = Run(precision=precision, steps=steps, clip=clip, make=lambda: Module(fused=True))
        counting = Counting()
        with counting:
            run.fit(callbacks)
        return sum(counting.counts[name] for name in READS)

    bare = count(30, []) - count(10, [])
    assert bare == 20  # the module of this test reads its losses
    with device_path():
        # Once a process a guard tries what a fused optimizer does, and reads that.
        count(1, [watched(tmp_path / "first", mode)])
        with_guard = count(30, [watched(tmp_path / "a", mode)]) - count(
            10, [watched(tmp_path, mode)]
        )
    assert with_guard == bare


# Said by torch's scheduler, with or without trimtab, when the scaler skips the first step.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_an_overflow_is_passed_over_by_the_scaler_and_reported(tmp_path: Path) -> None:
    run = Run(precision="16-mixed", initial_scale=1e7, steps=20)
    trained, _ = run.fit([watched(tmp_path, "protect")])
    block = journal_of(tmp_path)
    assert all(torch.isfinite(parameter).all() for parameter in trained.parameters)
    skipped = [event for event in block.events if event.kind == "step not applied"]
    assert skipped
    assert len(block) == 20


def test_a_whole_run_of_nan_ends_with_an_error_that_says_so(tmp_path: Path) -> None:
    class Broken(Module):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss * torch.nan if batch_idx > 10 else loss

    config = Config().override({"live.max_nonfinite_steps": 20})
    callback = watched(tmp_path, "protect", config=config)
    with pytest.raises(NonFiniteRun):
        Run(steps=100, make=Broken).fit([callback])
    assert callback.guard is None
