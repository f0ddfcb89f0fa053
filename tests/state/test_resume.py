"""A relaunched run goes on from its checkpoint with the bits of the run that never stopped."""

import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.damage import damage, files_of
from tests.kit.runs import (
    FEATURES,
    OPTIMIZERS,
    SCHEDULERS,
    TinyModel,
    assert_same,
    batches,
    seed_all,
)
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from trimtab.core.errors import ConfigError, RestoreError
from trimtab.journal.checkpoints.index import CheckpointEntry, Verdict
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

Make = Callable[[Any], optim.Optimizer]

EVERY = 15
"""Steps between two checkpoints; an epoch has 20 batches."""

slow = pytest.mark.slow
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # torchdata 0.11


class Noisy(Dataset[Any]):
    """A dataset of 20 batches of 4 that draws random numbers where it is read."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> Any:
        inputs = torch.full((FEATURES,), index / 60) + 0.1 * torch.randn(FEATURES)
        return inputs, inputs.sum(dim=0, keepdim=True)


class Seekable:
    """A loader that can begin at any batch."""

    def __init__(self) -> None:
        self.first = 0

    def seek(self, index: int) -> None:
        self.first = index

    def __iter__(self) -> Iterator[Any]:
        first, self.first = self.first, 0
        yield from batches(20)[first:]


LOADERS: dict[str, Callable[[], Any]] = {
    "stateful": partial(StatefulDataLoader, Noisy(), batch_size=4, shuffle=True),
    "seekable": Seekable,
    "list": partial(batches, 20),
    "shuffled": partial(DataLoader, Noisy(), batch_size=4, shuffle=True),
    "stateful, workers": partial(
        StatefulDataLoader, batches(20), batch_size=None, shuffle=True, num_workers=2
    ),
    "shuffled, workers": partial(DataLoader, Noisy(), batch_size=4, shuffle=True, num_workers=2),
}


class Job:
    """One launch of a training script; `seed` differs, so nothing is right by chance."""

    def __init__(
        self,
        folder: Path,
        make: Make,
        loader: str,
        seed: int,
        scheduler: str = "",
        **options: Any,
    ) -> None:
        seed_all(seed)
        self.model = TinyModel()
        self.optimizer = make(self.model.parameters())
        cycles = bool({"momentum", "betas"} & self.optimizer.defaults.keys())
        self.scheduler: Any = optim.lr_scheduler.OneCycleLR(
            self.optimizer, 0.1, total_steps=200, cycle_momentum=cycles
        )
        if scheduler:
            self.optimizer = make(self.model.parameters())
            self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
        self.ema = optim.swa_utils.AveragedModel(self.model)
        self.loader = LOADERS[loader]()
        self.checkpoints = Checkpoints(
            self.model,
            self.optimizer,
            run_dir=folder,
            scheduler=self.scheduler,
            scaler=self.scaler,
            state={"ema": self.ema},
            **options,
        )
        self.is_plateau = scheduler == "plateau"
        self.losses: dict[int, float] = {}
        self.drawn: list[Any] = []

    def train(self, until: int, every: int = EVERY) -> None:
        start = self.checkpoints.resume()
        step = start.step
        for _ in range(start.epoch, 10):
            for inputs, targets in self.checkpoints.batches(self.loader):
                loss = nn.functional.mse_loss(self.model(inputs), targets)
                self.losses[step] = loss.item()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step(*((loss.item(),) if self.is_plateau else ()))
                self.optimizer.zero_grad()
                self.ema.update_parameters(self.model)
                step += 1
                if step % every == 0:
                    self.checkpoints.save(step)
                if step == until:
                    self.checkpoints.wait()
                    self.drawn = [random.random(), np.random.rand(), torch.rand(3)]  # noqa: NPY002
                    return

    def state(self) -> Any:
        return {
            "model": self.model.state_dict() | dict(self.model.named_buffers()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.state_dict(),
            "random": self.drawn,
        }


def assert_resumes_exactly(
    tmp_path: Path,
    *,
    make: Make = OPTIMIZERS["adamw"],
    loader: str = "stateful",
    killed_at: int = 35,
    **options: Any,
) -> Job:
    until = killed_at + 10
    scheduler = options.get("scheduler", "")
    straight = Job(tmp_path / "straight", make, loader, seed=0, scheduler=scheduler)
    straight.train(until, every=1000)
    Job(tmp_path / "run", make, loader, seed=0, **options).train(killed_at)
    resumed = Job(tmp_path / "run", make, loader, seed=1, **options)
    resumed.train(until)
    first = killed_at // EVERY * EVERY
    assert min(resumed.losses) == first
    assert resumed.losses == {s: loss for s, loss in straight.losses.items() if s >= first}
    assert_same(straight.state(), resumed.state())
    return resumed


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("adamw-fused", "sgd", "rprop") else pytest.param(name, marks=slow)
        for name in OPTIMIZERS
    ],
)
def test_every_optimizer_resumes_exactly(tmp_path: Path, name: str) -> None:
    assert_resumes_exactly(tmp_path, make=OPTIMIZERS[name], background=True)


@slow
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_resumes_exactly(tmp_path: Path, name: str) -> None:
    assert_resumes_exactly(tmp_path, scheduler=name)


def test_a_return_to_a_checkpoint_within_the_process_is_exact_and_replaces_no_tensor(
    tmp_path: Path,
) -> None:
    straight = Job(tmp_path / "straight", OPTIMIZERS["adamw"], "stateful", seed=0)
    straight.train(40, every=1000)
    job = Job(tmp_path / "run", OPTIMIZERS["adamw"], "stateful", seed=0)
    job.train(35)
    tensors = [id(t) for s in job.optimizer.state.values() for t in s.values()]
    tensors += [id(p) for p in job.model.parameters()]
    job.train(40)  # resumes first
    assert min(job.losses) == 0
    assert job.losses == straight.losses
    assert_same(straight.state(), job.state())
    now = [id(t) for s in job.optimizer.state.values() for t in s.values()]
    assert tensors == now + [id(p) for p in job.model.parameters()]


@pytest.mark.parametrize(
    "loader",
    some_of(LOADERS, "stateful", "shuffled"),
)
@pytest.mark.parametrize(
    "killed_at",
    [pytest.param(18, marks=slow), 35, pytest.param(62, marks=slow)],
    ids=["first epoch", "second", "end of third"],
)
def test_every_loader_resumes_exactly_and_never_drops_batches_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loader: str, killed_at: int
) -> None:
    assert_resumes_exactly(tmp_path, loader=loader, killed_at=killed_at)
    dropped = {18: 15, 35: 10, 62: 20}[killed_at] if loader.startswith(("list", "shuffled")) else 0
    assert ("drops" in caplog.text) == (dropped > 0)
    assert f"drops {dropped} batches" in caplog.text or not dropped
    assert ("random numbers of its workers" in caplog.text) == (loader == "stateful, workers")


def finished_run(tmp_path: Path, until: int = 35) -> Path:
    folder = tmp_path / "run"
    Job(folder, OPTIMIZERS["adamw"], "stateful", seed=0).train(until)
    return folder


def relaunch(folder: Path) -> Job:
    return Job(folder, OPTIMIZERS["adamw"], "stateful", seed=1)


def test_a_run_without_checkpoints_begins_at_step_0(tmp_path: Path) -> None:
    start = relaunch(tmp_path / "run").checkpoints.resume()
    assert (start.step, start.data_position, start.epoch, start.folder) == (0, 0, 0, None)
    assert not (tmp_path / "run").exists()  # nothing is written before something is saved


@pytest.mark.parametrize("seed", some_of(range(200), 0))
def test_a_damaged_checkpoint_is_passed_over_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")
    folder = finished_run(tmp_path)
    dice = random.Random(seed)
    job = relaunch(folder)
    damage(dice.choice(files_of(folder / "trimtab/checkpoints/step-00000030")), dice)
    caplog.clear()
    start = job.checkpoints.resume()
    assert start.step == 15
    (line,) = [r.message for r in caplog.records if "resumes" in r.message]
    assert "resumes at step 15: step-00000015 is verified" in line
    assert "step-00000030 left out: " in line
    straight = Job(tmp_path / "straight", OPTIMIZERS["adamw"], "stateful", seed=0)
    straight.train(25, every=1000)
    job.train(25)
    assert_same(straight.state(), job.state())


def test_a_run_whose_checkpoints_are_all_bad_does_not_begin_again_by_itself(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    for path in (folder / "trimtab/checkpoints").rglob(".metadata"):
        path.unlink()
    with pytest.raises(RestoreError, match=r"no checkpoint can be loaded .*\.metadata cannot be"):
        relaunch(folder).checkpoints.resume()


def test_weights_that_are_not_finite_make_a_bad_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = finished_run(tmp_path)
    job = relaunch(folder)
    job.checkpoints.resume()
    with torch.no_grad():
        job.model.head.weight[0, 3] = float("nan")
    for step in (45, 60, 75, 90):
        job.checkpoints.save(step)
    assert "the checkpoint of step 45 is bad: 1 tensors are not finite, first head" in caplog.text
    verdicts = {entry.step: entry.verdict for entry in job.checkpoints.entries}
    assert verdicts[90] is Verdict.BAD
    # Checkpoints that are bad do not push out those that are not.
    assert [s for s in verdicts if s <= 30] == [15, 30]
    assert relaunch(folder).checkpoints.resume().step == 30
    assert relaunch(folder).checkpoints.resume(step=90).step == 90  # if the user insists


def test_a_journal_that_cannot_be_judged_does_not_stop_a_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("a bug")

    folder = finished_run(tmp_path)
    monkeypatch.setattr("trimtab.state.checkpoints.run_checkpoints.Checkpoints._is_current", fail)
    assert relaunch(folder).checkpoints.resume().step == 30
    assert "the verdicts are those of checkpoints.json: RuntimeError: a bug" in caplog.text


def test_a_save_that_fails_is_logged_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk:
        def save(self, folder: Path, state: dict[str, Any]) -> None:
            raise OSError(28, "No space left on device")

        def load(self, folder: Path, state: dict[str, Any]) -> None:
            raise AssertionError

    job = Job(tmp_path / "run", OPTIMIZERS["adamw"], "list", seed=0, checkpointer=FullDisk())
    job.train(31)
    assert max(job.losses) == 30
    assert caplog.text.count("could not be saved: OSError: [Errno 28] No space left") == 2


def test_a_loop_that_saves_by_itself_cannot_delete_the_last_proven_checkpoint(
    tmp_path: Path,
) -> None:
    host = tmp_path / "host"
    checkpoints = Checkpoints(run_dir=tmp_path / "run", keep=2)
    for step in range(10, 90, 10):
        own = host / f"step-{step}"
        own.mkdir(parents=True)
        torch.save({"step": step}, own / "model.pt")
        checkpoints.add(own, step)
        if step == 30:
            prove(checkpoints, step)
        for old in sorted(host.iterdir())[:-3]:  # the loop keeps 3
            for path in old.iterdir():
                path.unlink()
            old.rmdir()
    assert not (host / "step-30").exists()
    kept = [entry.step for entry in checkpoints.entries]
    assert kept == [30, 40, 70, 80]  # proven, next to be proven, and the newest two
    found = Checkpoints(run_dir=tmp_path / "run").find(before=35)
    assert found is not None
    assert torch.load(found / "model.pt")["step"] == 30
    newest = tmp_path / "run/trimtab/checkpoints/step-00000080/model.pt"
    assert newest.stat().st_ino == (host / "step-80" / "model.pt").stat().st_ino  # no copy


def prove(checkpoints: Checkpoints, step: int) -> None:
    index = checkpoints._store.index
    (entry,) = [entry for entry in index.entries if entry.step == step]
    proven = CheckpointEntry(folder=entry.folder, facts=entry.facts, verdict=Verdict.PROVEN)
    index.update([proven])


@pytest.fixture
def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path, follow_symlinks: bool) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)


def save_own(checkpoints: Checkpoints, folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"weights")
    checkpoints.add(folder, step)


@pytest.mark.usefixtures("without_links")
def test_where_links_are_impossible_the_log_says_so_and_the_files_are_verified_where_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    checkpoints = Checkpoints(run_dir=run)
    for step in (10, 20):
        save_own(checkpoints, run / f"host-{step}", step)
    assert "cannot be linked: Invalid cross-device link; if the training loop" in caplog.text
    assert checkpoints.find() == run / "host-20"
    (run / "host-20" / "model.pt").unlink()
    assert Checkpoints(run_dir=run).find() == run / "host-10"


@pytest.mark.usefixtures("without_links")
def test_a_checkpoint_elsewhere_that_cannot_be_linked_is_not_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(run_dir=tmp_path / "run")
    save_own(checkpoints, tmp_path / "host-10", 10)
    assert f"outside of the run directory; save below {tmp_path / 'run'}" in caplog.text
    assert checkpoints.find() is None


def test_a_checkpoint_that_holds_a_link_is_not_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints, own = Checkpoints(run_dir=tmp_path / "run"), tmp_path / "run" / "host-10"
    own.mkdir(parents=True)
    (tmp_path / "base.bin").write_bytes(b"base")
    (own / "base.bin").symlink_to(tmp_path / "base.bin")
    checkpoints.add(own, 10)
    assert "base.bin: " in caplog.text or "base.bin'" in caplog.text
    assert "symbolic link" in caplog.text
    assert checkpoints.find() is None


def test_wrong_calls_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep must be at least 1"):
        Checkpoints(run_dir=tmp_path, keep=0)
    with pytest.raises(ConfigError, match="pass the model and the optimizer"):
        Checkpoints(run_dir=tmp_path).save(3)
    with pytest.raises(ConfigError, match="there is no checkpointer 'tape-robot'"):
        Checkpoints(run_dir=tmp_path, checkpointer="tape-robot")
