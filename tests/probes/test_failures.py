"""An experiment that fails, is left or costs too much leaves training as it was."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.recovering import plain_run
from tests.kit.runs import same_run
from tests.probes.loops import answers_of, assert_unchanged, drive

import trimtab
from trimtab.journal.exit_request import RunExit
from trimtab.live.loop.step_loop import StepLoop
from trimtab.probes import registry
from trimtab.probes.passes import Experiment, Pass, Question
from trimtab.state.snapshot import Snapshot


def raising(question: Question) -> Experiment:
    yield Pass(first=question.step, last=question.step)
    raise MemoryError("no memory for this")


def endless(question: Question) -> Experiment:
    while True:
        yield Pass(first=question.step, last=question.step)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**registry.EXPERIMENTS, "raising": raising, "endless": endless}
    monkeypatch.setattr("trimtab.live.recover.experiments.replay.EXPERIMENTS", known)


@pytest.mark.usefixtures("planted")
def test_one_that_raises_costs_itself_alone(tmp_path: Path) -> None:
    answers = assert_unchanged(
        plain_run, tmp_path, {30: ("raising", 3), 45: ("again", 3)}, until=60
    )
    assert [event.facts["answer"] for event in answers] == ["open", "same"]
    assert "no memory" in answers[0].facts["sentence"]


@pytest.mark.usefixtures("planted")
def test_one_without_end_is_given_up_by_its_budget(tmp_path: Path) -> None:
    answers = assert_unchanged(
        plain_run, tmp_path, {30: ("endless", 3)}, until=40, settings={"probes.max_steps": 25}
    )
    assert answers[0].facts["steps"] == 25
    assert "max_steps" in answers[0].facts["sentence"]


def test_a_present_that_does_not_fit_into_memory_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Snapshot.take

    def take(self: Snapshot, state: Any, step: int) -> None:
        if step == 31:
            raise MemoryError("cannot allocate")
        taken(self, state, step)

    expected = plain_run()
    drive(expected, tmp_path / "straight", 40)
    monkeypatch.setattr(Snapshot, "take", take)
    run = plain_run()
    assert drive(run, tmp_path / "probed", 40, probes={30: ("again", 3)}) == 0
    same_run(expected, run)
    assert "cannot allocate" in answers_of(tmp_path / "probed")[0].facts["sentence"]


class LoopError(Exception):
    pass


def test_a_loop_that_is_left_in_the_middle_finds_the_present(tmp_path: Path) -> None:
    run = plain_run()

    def leave(guard: Any, step: Any) -> None:
        if step.is_probe and step.number == 26:
            raise LoopError

    with pytest.raises(LoopError):
        drive(run, tmp_path / "left", 60, probes={30: ("again", 3)}, on_step=leave)
    straight = plain_run()
    drive(straight, tmp_path / "straight", 31)
    for mine, theirs in zip(run.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert "left" in answers_of(tmp_path / "left")[0].facts["sentence"]


def test_a_trainer_that_counts_its_own_steps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(StepLoop, "can_replay", never, raising=False)
    assert drive(plain_run(), tmp_path, 40, probes={30: ("again", 3)}) == 0
    assert "counts its own steps" in answers_of(tmp_path)[0].facts["sentence"]


def test_a_healthy_run_is_never_experimented_on(tmp_path: Path) -> None:
    steps = drive(
        plain_run(), tmp_path, 120, settings={"ladder.enabled": True, "probes.enabled": True}
    )
    assert steps == 0
    assert answers_of(tmp_path) == []


KILLED = textwrap.dedent(
    """
    import os, signal, sys, time
    import torch
    import trimtab
    from trimtab.core.config import Config
    from trimtab import Checkpoints

    folder, kill_at, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    hang = 10.0 if how == "hang" else 0.0
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = [torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(200)]
    points = Checkpoints(model, optimizer, run_dir=folder)
    points.resume()
    probed = 0
    with trimtab.watch(model, optimizer, run_dir=folder, mode="recover", checkpoints=points,
                       config=Config().override({"ladder.enabled": False,
                                                 "live.hang_seconds": hang})) as guard:
        for step in guard.steps(data):
            if step.number >= 60:
                break
            if step.is_probe:
                probed += 1
                if probed == kill_at and how == "hang":
                    time.sleep(600)
                if probed == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            for batch in step:
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                guard.record(loss=loss)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step.number % 20 == 19:
                guard.checkpoint()
            if kill_at >= 0 and step.number == 45 and not step.is_probe:
                guard.probe("lower-lr", 38)  # 32 steps
    torch.save([p for p in model.parameters()], folder + "/final.pt")
    """
)


def run_killed(folder: Path, kill_at: int, how: str = "kill") -> int:
    script = folder.parent / "killed.py"
    script.write_text(KILLED)
    return subprocess.run(
        [sys.executable, str(script), str(folder), str(kill_at), how],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
    ).returncode


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """The weights of a run without an experiment."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert run_killed(folder, -1) == 0
    weights: list[torch.Tensor] = torch.load(folder / "final.pt")
    return weights


IN_CI = (2, 9)
KILLS = [pytest.param(n, marks=() if n in IN_CI else pytest.mark.slow) for n in range(1, 31)]


@pytest.mark.parametrize("kill_at", KILLS)
def test_a_run_killed_in_an_experiment_is_relaunched_as_if_there_had_been_none(
    kill_at: int, straight: list[torch.Tensor], tmp_path: Path
) -> None:
    killed = tmp_path / "run"
    assert run_killed(killed, kill_at) == -signal.SIGKILL
    assert run_killed(killed, 0) == 0
    assert all(map(torch.equal, torch.load(killed / "final.pt"), straight))
    report = trimtab.diagnose(killed)
    assert list(report.block.step[-20:]) == list(range(40, 60))


def test_a_run_that_hangs_in_an_experiment_is_ended_and_relaunched_as_if_there_had_been_none(
    straight: list[torch.Tensor], tmp_path: Path
) -> None:
    hung = tmp_path / "hung"
    assert run_killed(hung, 5, "hang") == RunExit.RELAUNCH
    assert "of an experiment" in (hung / "trimtab" / "hang" / "rank-00000.txt").read_text()
    assert run_killed(hung, 0) == 0
    assert all(map(torch.equal, torch.load(hung / "final.pt"), straight))


def test_a_step_that_takes_too_long_is_reported_while_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def dawdle(guard: Any, step: Any) -> None:
        if step.is_probe:
            time.sleep(0.3)

    answers = assert_unchanged(
        plain_run,
        tmp_path,
        {30: ("again", 3)},
        until=40,
        on_step=dawdle,
        settings={"probes.max_seconds": 0.1},
    )
    assert "max_seconds" in answers[0].facts["sentence"]
    assert answers[0].facts["steps"] == 1
    assert "cannot be interrupted" in caplog.text
