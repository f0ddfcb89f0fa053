"""Checkpoints of a watched run: saved between steps, judged by the guard, resumed exactly."""

import logging
import shutil
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import one_of_each, some_of
from tests.kit.observing import with_observer  # noqa: F401
from tests.kit.runs import FEATURES, batches, seed_all
from tests.kit.user_loop import take_step
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.journal import RunDirectory, observer_process, read_journal
from trimtab.lab.trainer.local_ranks import run_ranks

NUM_BATCHES = 40
NAN = float("nan")


class Job:
    """One launch of a training script with a guard."""

    def __init__(self, folder: Path, *, layout: str = "", mode: str = "observe", **options: Any):
        seed_all()
        self.folder, self.mode = folder, mode
        self.model: nn.Module = nn.Sequential(
            nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)
        )
        if layout == "ddp":
            self.model = DistributedDataParallel(self.model)
        elif layout == "fsdp2":
            fully_shard(self.model)
        make = options.pop("make", partial(optim.AdamW, lr=1e-2))
        self.optimizer: optim.Optimizer = make(self.model.parameters())
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 1000)
        self.checkpoints = trimtab.Checkpoints(
            self.model, self.optimizer, run_dir=folder, scheduler=self.scheduler, **options
        )
        self.rank, self.world = 0, 1
        if dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.loader: Any = batches(NUM_BATCHES * self.world)[self.rank :: self.world]
        self.positions: dict[int, int] = {}
        self.nan_at: int | None = None
        """The step with a batch that is not finite."""

    def watch(self, **options: Any) -> Any:
        self.checkpoints.resume()
        return trimtab.watch(
            self.model,
            self.optimizer,
            run_dir=self.folder,
            mode=self.mode,
            checkpoints=self.checkpoints,
            **options,
        )

    def train_step(self, guard: Any, batch: Any, factor: float = 1.0) -> None:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(factor * inputs), targets)
        guard.record(loss=loss)
        loss.backward()

    def end_step(self) -> None:
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def train(self, until: int, *, every: int = 8, accumulate: int = 1, **options: Any) -> None:
        """With `guard.steps`; a checkpoint is asked for in the middle of a step."""
        with self.watch(**options) as guard:
            for step in guard.steps(self.loader, accumulate):
                self.positions[step.number] = step.data_position
                if (step.number + 1) % every == 0:
                    guard.checkpoint()
                for batch in step:
                    self.train_step(guard, batch, NAN if step.number == self.nan_at else 1.0)
                self.end_step()
                if step.number + 1 == until:
                    break

    def weights(self) -> list[Any]:
        state = self.optimizer.state.values()
        tensors = [*self.model.parameters(), *(t for s in state for t in s.values())]
        whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]
        return [t.detach().numpy().copy() for t in whole if isinstance(t, torch.Tensor)]


def assert_equal(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    assert all(map(np.array_equal, one, other))


def steps_of(folder: Path) -> list[int]:
    return [int(step) for step in read_journal(RunDirectory(folder)).block.step]


@pytest.mark.parametrize(
    ("mode", "accumulate"), one_of_each(product(["observe", "protect"], [1, 2]))
)
def test_a_run_in_guard_steps_resumes_exactly(tmp_path: Path, mode: str, accumulate: int) -> None:
    straight = Job(tmp_path / "straight", mode=mode)
    straight.train(20, every=100, accumulate=accumulate)
    Job(tmp_path / "run", mode=mode, background=True).train(13, accumulate=accumulate)
    resumed = Job(tmp_path / "run", mode=mode, background=True)
    resumed.train(20, accumulate=accumulate)
    assert_equal(straight.weights(), resumed.weights())
    assert resumed.positions == {s: p for s, p in straight.positions.items() if s >= 8}
    assert steps_of(tmp_path / "run") == [*range(13), *range(8, 20)]
    attempts = read_journal(RunDirectory(tmp_path / "run")).block.attempt
    assert attempts.tolist() == [0] * 13 + [1] * 12


@pytest.mark.parametrize("enabled", [True, False])
def test_checkpoints_are_saved_by_steps_in_guard_steps_and_where_they_are_asked_for(
    tmp_path: Path, enabled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trimtab")
    job = Job(tmp_path / "steps", every_steps=6, keep=9)
    job.train(20, every=100, enabled=enabled)
    assert [entry.step for entry in job.checkpoints.entries] == [6, 12, 18]
    assert caplog.text.count("going back to one costs up to 6 steps") == 1
    if enabled:
        job = Job(tmp_path / "own", every_steps=6, keep=9)
        with job.watch() as guard:
            for batch in job.loader[:20]:
                job.train_step(guard, batch)
                job.end_step()
                guard.checkpoint(if_due=True)
        assert [entry.step for entry in job.checkpoints.entries] == [6, 12, 18]


@pytest.mark.parametrize("optimizer", some_of([optim.AdamW, optim.SGD], optim.AdamW))
def test_a_plain_loop_resumes_exactly(tmp_path: Path, optimizer: Any) -> None:
    def train(job: Job, until: int, every: int) -> None:
        with job.watch() as guard:
            step = job.checkpoints.resumed.step
            for batch in job.checkpoints.batches(job.loader):
                job.train_step(guard, batch)
                job.end_step()
                step += 1
                if step % every == 0:
                    guard.checkpoint()
                if step == until:
                    return

    make = partial(optimizer, lr=1e-2)
    straight = Job(tmp_path / "straight", make=make)
    train(straight, 20, every=100)
    train(Job(tmp_path / "run", make=make), 13, every=8)
    resumed = Job(tmp_path / "run", make=make)
    train(resumed, 20, every=8)
    assert_equal(straight.weights(), resumed.weights())
    # torch makes missing state by a step with a rate of zero: that is no step of the run.
    assert steps_of(tmp_path / "run") == [*range(13), *range(8, 20)]


def test_a_checkpoint_that_was_asked_for_in_the_last_step_is_saved(tmp_path: Path) -> None:
    Job(tmp_path / "run").train(16)
    straight = Job(tmp_path / "straight")
    straight.train(16, every=100)
    resumed = Job(tmp_path / "run")
    assert resumed.checkpoints.resume().step == 16
    assert_equal(straight.weights(), resumed.weights())


@pytest.mark.usefixtures("with_observer")
def test_the_guard_judges_checkpoints_as_the_run_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", keep=20)
    job.loader = batches(200)
    job.train(200, every=25)
    verdicts = {entry.step: entry.verdict.value for entry in job.checkpoints.entries}
    assert verdicts == {
        **dict.fromkeys((25, 50, 75, 100), "proven"),
        **dict.fromkeys((125, 150, 175, 200), "unproven"),
    }


@pytest.mark.usefixtures("with_observer")
@pytest.mark.parametrize("observer", [True, False])
def test_that_a_run_is_not_judged_is_said_where_no_observer_was_started(
    observer: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(observer_process, "judged_tick", lambda home: -1)  # it is never in time
    model = nn.Linear(FEATURES, 1)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    checkpoints = trimtab.Checkpoints(model, optimizer, run_dir=tmp_path)
    options: dict[str, Any] = {"checkpoints": checkpoints, "observer": observer}
    with trimtab.watch(model, optimizer, run_dir=tmp_path, **options) as guard:
        take_step(guard, optimizer, model(torch.ones(2, FEATURES)).mean())
        guard.checkpoint()
    assert ("the run is not judged" in caplog.text) is not observer


def test_weights_that_become_nan_do_not_cost_the_last_good_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")
    job = Job(tmp_path / "run", keep=3)
    job.loader, job.nan_at = batches(160), 120
    job.train(160)
    entries = {entry.step: entry for entry in job.checkpoints.entries}
    assert all(entry.verdict == "bad" for step, entry in entries.items() if step > 120)
    assert 120 in entries
    relaunched = Job(tmp_path / "run")
    start = relaunched.checkpoints.resume()
    # Step 120 was saved just before the NaN: nothing speaks against the one before it.
    assert start.step == 112
    assert "step-00000160 left out" in start.reason
    assert "step-00000120 left out: saved 0 steps before the onset of incident 1" in start.reason
    assert all(p.isfinite().all() for p in relaunched.model.parameters())


@pytest.mark.parametrize("bias", [-torch.inf, torch.inf])
def test_an_infinite_weight_is_harm_only_where_the_loss_shows_it(
    bias: float, tmp_path: Path
) -> None:
    """With minus infinity a unit in front of a ReLU is switched off, and the run trains on."""
    job = Job(tmp_path, mode="protect", keep=20)
    job.loader = batches(80)
    with job.watch() as guard:
        for step in guard.steps(job.loader):
            if step.number == 40:
                job.model.get_parameter("0.bias").data[3] = bias
            for batch in step:
                job.train_step(guard, batch)
            job.end_step()
            if (step.number + 1) % 8 == 0:
                guard.checkpoint()
    is_harm = bias > 0
    assert (trimtab.diagnose(tmp_path).incidents != ()) == is_harm
    assert [entry.step for entry in job.checkpoints.entries if entry.verdict == "bad"] == (
        [48, 56, 64, 72, 80] if is_harm else []
    )


@pytest.mark.usefixtures("with_observer")
def test_a_loop_that_keeps_two_of_its_own_does_not_delete_the_last_proven_one(
    tmp_path: Path,
) -> None:
    def launch(until: int) -> tuple[trimtab.Checkpoints, list[Path]]:
        model = nn.Linear(FEATURES, 1)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        checkpoints = trimtab.Checkpoints(run_dir=tmp_path / "run", keep=1)
        found = checkpoints.find()
        if found is not None:
            model.load_state_dict(torch.load(found / "model.pt"))
        first = 0 if found is None else int(torch.load(found / "step.pt"))
        saved: list[Path] = []
        with trimtab.watch(
            model,
            optimizer,
            run_dir=tmp_path / "run",
            checkpoints=checkpoints,
            facts={"step": first},
        ) as guard:
            for step in range(first, until):
                inputs, targets = batches(200)[step % 200]
                take_step(guard, optimizer, nn.functional.mse_loss(model(inputs), targets))
                if (step + 1) % 20 == 0:
                    own = tmp_path / "host" / f"{first}-{step + 1:05d}"
                    own.mkdir(parents=True)
                    torch.save(model.state_dict(), own / "model.pt")
                    torch.save(step + 1, own / "step.pt")
                    checkpoints.add(own, step + 1)
                    saved.append(own)
                    for old in saved[:-2]:
                        shutil.rmtree(old, ignore_errors=True)
        return checkpoints, saved

    launch(70)
    checkpoints, saved = launch(200)  # went on from step 60, as a second attempt
    proven = [entry for entry in checkpoints.entries if entry.verdict == "proven"]
    assert proven
    assert {entry.facts.attempt for entry in checkpoints.entries[-2:]} == {1}
    step = proven[-1].step
    assert step <= 100
    assert not [path for path in saved if path.exists() and int(path.name[-5:]) <= 100]
    folder = checkpoints.find(before=step)
    assert folder is not None
    assert torch.load(folder / "step.pt") == step


def test_a_guard_that_is_switched_off_saves_and_resumes_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight = Job(tmp_path / "straight")
    straight.train(20, every=100, enabled=False)
    Job(tmp_path / "run").train(13, enabled=False)
    resumed = Job(tmp_path / "run")
    resumed.train(20, enabled=False)
    assert_equal(straight.weights(), resumed.weights())
    guard = resumed.watch(enabled=False)
    guard.checkpoint()
    assert "call guard.checkpoint(step=...)" in caplog.text
    guard.checkpoint(step=77)
    assert resumed.checkpoints.entries[-1].step == 77


def test_a_guard_without_checkpoints_says_what_to_pass(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with (
        trimtab.watch(model, optimizer, run_dir=tmp_path) as guard,
        pytest.raises(trimtab.TrimtabError, match="pass checkpoints="),
    ):
        guard.checkpoint()


def train_on_ranks(folder: Path, layout: str, until: int, every: int, rank: int) -> Any:
    job = Job(folder, layout=layout, mode="protect", background=layout == "fsdp2")
    job.train(until, every=every)
    return job.weights(), job.positions


@pytest.mark.parametrize("layout", some_of(["ddp", "fsdp2"], "fsdp2"))
def test_two_ranks_resume_exactly(tmp_path: Path, layout: str) -> None:
    straight = run_ranks(partial(train_on_ranks, tmp_path / "straight", layout, 20, 100), 2)
    run_ranks(partial(train_on_ranks, tmp_path / "run", layout, 13, 8), 2)
    resumed = run_ranks(partial(train_on_ranks, tmp_path / "run", layout, 20, 8), 2)
    for mine, theirs in zip(resumed, straight, strict=True):
        assert_equal(mine[0], theirs[0])
        assert mine[1] == {s: p for s, p in theirs[1].items() if s >= 8}
