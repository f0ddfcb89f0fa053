"""The trial of states on one process: what it restores, proposes and leaves alone, bit for bit."""

import inspect
import io
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console
from tests.kit.cases import some_of
from tests.kit.tiny import journal_of
from torch import nn, optim
from torch.nn import functional as F

import trimtab
from trimtab.core.block import Event
from trimtab.core.config import Config
from trimtab.core.events import ROLLBACK_PROPOSED, TRIAL, UNDO, UNDO_OUTCOME
from trimtab.diagnosis import diagnose
from trimtab.live.recover.trial import StateTrial
from trimtab.live.recover.trial_rule import LossLevel, Outcome, TrialSchedule
from trimtab.report.run_report import RunReport
from trimtab.report.terminal import report_view
from trimtab.state.batches import RememberedBatches
from trimtab.state.snapshots import Snapshots

AT, STEPS, RATE = 80, 150, 3e-3


@dataclass
class Run:
    """A run with everything that a change may want to reach."""

    folder: Path
    model: nn.Module
    optimizer: optim.Optimizer
    guard: Any = None
    rate: float = RATE
    calls: int = 0
    bits: list[bytes] = field(default_factory=list)

    def loss(self, batch: Any) -> torch.Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def events(self, *kinds: str) -> list[Event]:
        return [e for e in journal_of(self.folder).events if e.kind in kinds]


BatchLoss = Callable[[Run, Any], torch.Tensor]


def ordinary(run: Run, batch: Any) -> torch.Tensor:
    return run.loss(batch)


def train(
    folder: Path,
    rollback: str,
    change: Callable[[Run, int], None] = lambda run, step: None,
    *,
    batch_loss: BatchLoss = ordinary,
    steps: int = STEPS,
    accumulate: int = 2,
) -> Run:
    """Train a classifier with dropout and BatchNorm on labels with noise."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    )
    run = Run(folder, model, optim.AdamW(model.parameters(), lr=RATE))
    truth = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))
    stream = torch.Generator().manual_seed(1)

    def called(batch: Any) -> torch.Tensor:
        run.calls += 1
        return batch_loss(run, batch)

    config = Config().override({"recover.snapshot_every": 10, "recover.rollback": rollback})
    run.guard = trimtab.watch(
        *(model, run.optimizer),
        run_dir=folder,
        mode="recover",
        batch_loss=called,
        config=config,
        observer=False,
    )
    with run.guard as guard:
        for step in range(steps):
            run.rate = RATE
            change(run, step)
            run.optimizer.param_groups[0]["lr"] = run.rate
            for _ in range(accumulate):
                x = torch.randn(64, 8, generator=stream)
                batch = x, (x @ truth + torch.randn(64, 4, generator=stream)).argmax(1)
                loss = run.loss(batch)
                guard.record(loss=loss, batch=batch)
                (loss / accumulate).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.bits.append(state_of(run))
    return run


def state_of(run: Run) -> bytes:
    """Return all bits: weights, buffers, moments and random numbers."""
    moments = [v for s in run.optimizer.state.values() for v in s.values()]
    tensors = [*run.model.parameters(), *run.model.buffers(), *moments, torch.get_rng_state()]
    return b"".join(t.detach().numpy().tobytes() for t in tensors)


def too_fast(run: Run, step: int) -> None:
    if 0 <= step - AT < 5:
        run.rate = 100 * RATE


def often(self: TrialSchedule, update: int, sigmas: float) -> bool:
    """Open a trial now and then, whatever the loss."""
    return update % 30 == 20


@cache
def bits_without_trials(accumulate: int, steps: int) -> list[bytes]:
    """Return the bits of the run that nobody tries anything on; the same for many tests."""
    with tempfile.TemporaryDirectory() as folder:
        return train(Path(folder), "off", accumulate=accumulate, steps=steps).bits


# What it does.


def test_a_state_that_a_fault_has_spoilt_is_restored_by_auto(tmp_path: Path) -> None:
    run = train(tmp_path, "auto", too_fast)
    (undo,) = run.events(UNDO)
    lost = undo.facts["updates_lost"]
    assert undo.facts["gain"] > 0.05
    assert "nat better on your last 8 batches" in undo.facts["why"]
    assert "is_ordered" not in undo.facts
    assert undo.step - lost < AT  # the older state is from before the fault
    (outcome,) = run.events(UNDO_OUTCOME)
    assert outcome.facts["helped"]
    assert outcome.facts["gained"] > 0.05
    assert run.events(ROLLBACK_PROPOSED) == []


def test_ask_proposes_with_a_price_and_guard_undo_restores_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Event] = []

    def answers(run: Run, step: int) -> None:
        too_fast(run, step)
        if step == 140:
            run.guard.undo()

    with caplog.at_level(logging.INFO, logger="trimtab"):
        run = train(tmp_path, "ask", answers)
    asked = run.events(ROLLBACK_PROPOSED)
    (undo,) = run.events(UNDO)
    to_step = asked[0].step - asked[0].facts["updates_lost"]
    assert len(asked) == 1
    assert "updates lost. Not restored, as recover.rollback is" in caplog.text
    assert undo.facts["to_step"] == to_step < AT
    assert undo.facts["gain"] == asked[0].facts["gain"]
    assert "asked for by guard.undo, as an older state is" in undo.facts["why"]
    assert asked[0].facts["sentence"] not in _shown(diagnose(tmp_path))  # it was taken
    plain = train(tmp_path / "plain", "off", too_fast)
    assert run.bits[:139] == plain.bits[:139]  # until the answer nothing was touched


def test_off_tries_nothing(tmp_path: Path) -> None:
    run = train(tmp_path, "off", too_fast)
    assert run.calls <= 40  # the experiments of an incident
    assert run.events(TRIAL, UNDO, ROLLBACK_PROPOSED) == []


def head_reset(run: Run, step: int) -> None:
    if step == AT:
        run.model[4].reset_parameters()  # type: ignore[index]


def head_reset_by_data(run: Run, step: int) -> None:
    if step == AT:
        run.model[4].weight.data.mul_(-1)  # type: ignore[index]


def decay_too(run: Run, step: int) -> None:
    too_fast(run, step)
    run.optimizer.param_groups[0]["weight_decay"] = 0.02 if step >= AT else 0.01


def announced(run: Run, step: int) -> None:
    too_fast(run, step)
    if step == AT:
        run.guard.event("phase 2")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(head_reset, "your code has written weights", marks=pytest.mark.slow),
        (head_reset_by_data, "your code has written weights"),
        (decay_too, "your code has changed weight_decay"),
        pytest.param(announced, "your code has announced a change", marks=pytest.mark.slow),
    ],
)
def test_what_may_be_on_purpose_is_proposed_only(
    change: Callable[[Run, int], None], why: str, tmp_path: Path
) -> None:
    run = train(tmp_path, "auto", change)
    assert run.events(UNDO) == []
    (asked,) = run.events(ROLLBACK_PROPOSED)
    assert why in asked.facts["because"]
    assert asked.facts["sentence"] in _shown(diagnose(tmp_path))


def _shown(report: RunReport) -> str:
    console = Console(width=400, file=io.StringIO(), record=True)
    console.print(report_view(report, 400))
    return console.export_text()


def test_other_data_are_left_alone(tmp_path: Path) -> None:
    def other(run: Run, batch: Any) -> torch.Tensor:
        return run.loss(batch)

    def change(run: Run, step: int) -> None:
        if step == AT:
            original = run.loss
            run.loss = lambda batch: original(  # type: ignore[method-assign]
                (batch[0], (batch[1] + 1) % 4)
            )

    run = train(tmp_path, "auto", change, batch_loss=other)
    assert run.events(UNDO, ROLLBACK_PROPOSED) == []
    assert [event.facts["outcome"] for event in run.events(TRIAL)][-1] == Outcome.PRESENT


def test_without_batch_loss_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 2)
    optimizer = optim.AdamW(model.parameters())
    with caplog.at_level(logging.INFO, logger="trimtab"):
        trimtab.watch(*(model, optimizer), run_dir=tmp_path, mode="recover", observer=False).close()
    assert (
        caplog.text.count("no batch_loss was given: loss spikes are reported, and no rollback is")
        == 1
    )


# Bits.


@pytest.mark.parametrize("accumulate", some_of([1, 2, 6], 1, 6))
def test_a_trial_that_closes_leaves_every_bit(accumulate: int, tmp_path: Path) -> None:
    with mock.patch.object(TrialSchedule, "opens", often):
        tried = train(tmp_path / "tried", "auto", accumulate=accumulate, steps=90)
    assert tried.events(TRIAL)
    assert tried.events(UNDO) == []
    assert tried.calls >= 32 * min(accumulate, 4)
    assert tried.bits == bits_without_trials(accumulate, 90)


# What the user's function may do.


def raises(run: Run, batch: Any) -> torch.Tensor:
    raise ValueError("planted")


def raises_on_the_old_state(run: Run, batch: Any) -> torch.Tensor:
    if run.calls % 4 == 3:
        raise ValueError("planted")
    return run.loss(batch)


def is_nan(run: Run, batch: Any) -> torch.Tensor:
    return run.loss(batch) * torch.nan


def is_a_vector(run: Run, batch: Any) -> torch.Tensor:
    return F.cross_entropy(run.model(batch[0]), batch[1], reduction="none")


def steps_itself(run: Run, batch: Any) -> torch.Tensor:
    run.optimizer.step()
    return run.loss(batch)


def writes_to_the_batch(run: Run, batch: Any) -> torch.Tensor:
    batch[0].zero_()
    return run.loss(batch)


def is_no_tensor(run: Run, batch: Any) -> Any:
    return float(run.loss(batch))


def is_slow(run: Run, batch: Any) -> torch.Tensor:
    time.sleep(0.6)
    return run.loss(batch)


TAKES_PART = (is_nan, is_a_vector)
IS_REFUSED = (raises, raises_on_the_old_state, steps_itself, is_no_tensor, is_slow)
QUICK = (*TAKES_PART, *IS_REFUSED[:-1], writes_to_the_batch)


@pytest.mark.parametrize(
    "batch_loss", some_of([*TAKES_PART, *IS_REFUSED, writes_to_the_batch], *QUICK)
)
def test_no_function_of_the_user_moves_a_bit(
    batch_loss: BatchLoss, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch.object(TrialSchedule, "opens", often):
        tried = train(tmp_path / "tried", "ask", batch_loss=batch_loss, steps=60)
    assert tried.bits == bits_without_trials(2, 60)
    failed = [r for r in caplog.records if "trials of states failed" in r.getMessage()]
    assert len(failed) == (batch_loss in IS_REFUSED)
    assert tried.events(UNDO) == []
    assert tried.calls > 0


@pytest.mark.parametrize("call", [1, 3])
def test_a_run_that_is_interrupted_in_a_trial_has_its_own_weights(
    call: int, tmp_path: Path
) -> None:
    def interrupted(run: Run, batch: Any) -> torch.Tensor:
        if run.calls == 4 + call:
            raise KeyboardInterrupt
        return run.loss(batch)

    found: list[Run] = []

    def keep(run: Run, step: int) -> None:
        found[:] = [run]

    with mock.patch.object(TrialSchedule, "opens", often), pytest.raises(KeyboardInterrupt):
        train(tmp_path, "ask", keep, batch_loss=interrupted, steps=60)
    (run,) = found
    weights = b"".join(p.detach().numpy().tobytes() for p in run.model.parameters())
    assert run.bits[-1].startswith(weights)
    assert all(parameter.grad is not None for parameter in run.model.parameters())


# What fails in here.


def functions() -> list[Any]:
    """Return every function of the trial, with the class or module that holds it."""
    found: list[Any] = [(Snapshots, "forward_state"), (RememberedBatches, "end_step")]
    for owner in (StateTrial, LossLevel, TrialSchedule):
        for name, value in vars(owner).items():
            if inspect.isfunction(value) and name != "__init__":
                found.append((owner, name))
    return found


@pytest.mark.parametrize(
    ("owner", "name"),
    some_of(functions(), *functions()[::2]),
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
def test_whatever_fails_in_here_training_goes_on(
    owner: Any, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("planted")

    patched = mock.patch.object(TrialSchedule, "opens", often)
    with patched, mock.patch.object(owner, name, fail):
        tried = train(tmp_path / "tried", "auto", steps=60)
    assert tried.bits == bits_without_trials(2, 60)
    assert tried.events(UNDO) == []
    failed = [r.getMessage() for r in caplog.records if "failed in" in r.getMessage()]
    assert len(failed) <= 1, failed
