"""The observer that a training process starts also sends the run, and reports its death."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.runs import wait_until
from tests.kit import forked
from tests.kit.observing import with_observer  # noqa: F401
from tests.kit.servers import Mlflow, Receiver, serving

from trimtab.core.config import Config, ShipConfig
from trimtab.core.findings import Symptom
from trimtab.core.sink import RunStatus
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.journal.observer_process import Callbacks, ObserverProcess, _left
from trimtab.observe.shipping.cursor import Cursor

pytestmark = pytest.mark.usefixtures("with_observer")

TRAIN = """
import multiprocessing, os, sys, time
import torch
import trimtab

model = torch.nn.Linear(4, 1)
torch.nn.init.constant_(model.bias, 3.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # it falls for as long as the test takes
config = trimtab.Config.from_dict({"ship": {"to": ["mlflow", "alerts"]}})
with trimtab.watch(model, optimizer, run_dir=sys.argv[1], config=config) as guard:
    if "fork" in sys.argv:  # a data loader worker that outlives the trainer
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
        print(worker.pid, flush=True)
    for step in range(int(sys.argv[2])):
        loss = model(torch.ones(2, 4)).square().mean()
        guard.record(loss=loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
        if os.path.exists(os.path.join(sys.argv[1], "stop")):
            break
print("done", flush=True)
"""
CHECK = """
modules = {name.partition(".")[0] for name in sys.modules}
assert not modules & {"mlflow", "wandb", "apprise"}, modules
outside = ("trimtab.integrations", "trimtab.observe")
assert not any(name.startswith(outside) for name in sys.modules)
"""


def start_training(
    folder: Path, steps: int, tracker: str, alerts: str, *options: str, is_new: bool = False
) -> "subprocess.Popen[str]":
    """Start it as a fork, or as a new process, which says what it has imported."""
    environment = {
        **os.environ,
        "NO_PROXY": "127.0.0.1",
        "MLFLOW_TRACKING_URI": tracker,
        "TRIMTAB_ALERT_URLS": f"webhook+{alerts}/hook",
    }
    pipes: Any = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = ["-c", TRAIN + CHECK * is_new, str(folder), str(steps), *options]
    if is_new:
        return subprocess.Popen([sys.executable, *command], env=environment, text=True, **pipes)
    return forked.Forked(command, env=environment, **pipes)


def losses(server: Mlflow) -> list[int]:
    return sorted(row[3] for row in server.metrics if row[1] == "trimtab/loss")


def test_a_run_is_sent_while_it_trains_and_no_tracker_is_imported_there(tmp_path: Path) -> None:
    with serving(tracker := Mlflow()), serving(people := Receiver()):
        training = start_training(tmp_path, 100_000, tracker.url, people.url, is_new=True)
        wait_until(lambda: len(tracker.metrics) > 100, 150)
        (tmp_path / "stop").touch()
        # The pipes of the trainer end with the trainer, not with its shipper.
        output, errors = training.communicate(timeout=150)
        assert training.returncode == 0, errors
        assert output == "done\n"
        wait_until(lambda: bool(tracker.runs) and tracker.only_run()["status"] == "FINISHED")
    records = len(read_journal(RunDirectory(tmp_path)).block)
    assert losses(tracker) == list(range(records))
    # On a busy machine steps are slow in truth, and people are told so.
    slow = (Symptom.SLOW, Symptom.STALL)
    titles = [alert["title"] for _, alert in people.posted]
    assert not [title for title in titles if not any(symptom in title for symptom in slow)]


def test_a_trainer_that_is_killed_is_reported_as_died_though_a_worker_lives(tmp_path: Path) -> None:
    with serving(tracker := Mlflow()), serving(people := Receiver()):
        training = start_training(tmp_path, 100_000, tracker.url, people.url, "fork")
        assert training.stdout is not None
        assert training.stderr is not None
        worker = int(training.stdout.readline())
        wait_until(lambda: len(tracker.metrics) > 100, 150)
        training.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        training.wait()
        wait_until(lambda: bool(people.posted), 20)
        assert time.monotonic() - killed < 10
        ((path, alert),) = people.posted
        assert path == "/hook"
        assert alert["state"] == "open"
        assert "died" in alert["title"]
        wait_until(lambda: tracker.only_run()["status"] == "FAILED")
        os.kill(worker, signal.SIGKILL)
        training.stdout.close()
        training.stderr.close()
    steps = losses(tracker)
    assert steps == list(range(len(steps)))


def test_a_tracker_that_is_down_is_logged_once_and_training_goes_on(tmp_path: Path) -> None:
    with serving(people := Receiver()):
        training = start_training(tmp_path, 700, "http://127.0.0.1:9", people.url)
        output, errors = training.communicate(timeout=150)
    assert output == "done\n"
    assert errors.count("mlflow cannot be reached") == 1


def observer_of(run: RunDirectory, *, to: tuple[str, ...] = ("mlflow",)) -> ObserverProcess:
    config = Config(ship=ShipConfig(to=to, drain_seconds=2))
    run.write_manifest({"config": config.to_dict()})
    return ObserverProcess(run, Callbacks(None), lambda incident: None, stall_seconds=1e9)


def test_a_sink_that_does_not_exist_is_logged_once_and_the_run_is_judged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory(tmp_path)
    observer = observer_of(run, to=("mlflwo",))
    with JournalWriter(run) as journal:
        journal.append(0, {"loss": 1.0, "clock": 1e9})
    observer.close()
    assert len([text for text in caplog.messages if "there is no sink 'mlflwo'" in text]) == 1
    assert (run.home / "verdict.json").exists()


def test_closing_waits_for_the_judgement_and_not_for_a_tracker_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    run = RunDirectory(tmp_path)
    run.write_manifest({"config": Config(ship=ShipConfig(to=("mlflow",))).to_dict()})
    observer = ObserverProcess(run, Callbacks(None), lambda incident: None, stall_seconds=1e9)
    with JournalWriter(run) as journal:
        journal.append(0, {"loss": 1.0, "clock": 1e9})
    observer.close()
    assert (run.home / "verdict.json").exists()
    (child,) = _left
    assert child.poll() is None, "it still tries, for 120 s"
    assert not [text for text in caplog.messages if "still works" in text]
    child.kill()
    child.wait()


def test_a_shipper_of_the_next_launch_waits_for_the_one_before(tmp_path: Path) -> None:
    """The end of the earlier launch is in the journal, and is not taken for that of this one."""
    run = RunDirectory(tmp_path)
    environment = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    with pytest.MonkeyPatch.context() as patch, serving(tracker := Mlflow()):
        for name, value in {**environment, "NO_PROXY": "127.0.0.1"}.items():
            patch.setenv(name, value)
        with JournalWriter(run) as journal:
            first = observer_of(run)
            journal.append(0, {"loss": 1.0, "clock": 1e9})
            time.sleep(1)
        first.close()
        patch.setenv("MLFLOW_TRACKING_URI", tracker.url)
        second = observer_of(run)
        time.sleep(1)
        with JournalWriter(run) as journal:
            journal.append(1, {"loss": 1.0, "clock": 1e9})
        time.sleep(0.5)
        second.close()
        wait_until(lambda: losses(tracker) == [0, 1])
        wait_until(lambda: Cursor(run, "mlflow").status is RunStatus.ENDED)
    assert Cursor(run, "mlflow").num_records == 2
