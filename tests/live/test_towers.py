"""Whatever becomes of the training process or of its observer, the verdict is there."""

import gc
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit import forked
from tests.kit.cases import some_of
from tests.kit.ended_run import SPIKE, STEPS, children, started, train
from tests.kit.observing import observe, with_observer  # noqa: F401
from tests.kit.plugins import install_plugin
from tests.kit.tiny import journal_of
from tests.kit.user_loop import take_step
from tests.live.test_do_no_harm import planted

import trimtab
from trimtab.journal import RunDirectory, observer_process
from trimtab.journal.news import read_news
from trimtab.journal.observer_process import judge_to_end
from trimtab.observe.news_writer import NewsWriter

pytestmark = pytest.mark.usefixtures("with_observer")

Weights = dict[str, torch.Tensor]


def status_of(run_dir: Path) -> dict[str, Any]:
    """Return the last standing of a run that its observer has said."""
    said = [event for event in read_news(RunDirectory(run_dir)) if event.kind == "run status"]
    return dict(said[-1].facts) if said else {}


def wait_for_end(run_dir: Path, seconds: float = 90.0) -> dict[str, Any]:
    """Wait until the observer has written its report."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if status_of(run_dir) and (run_dir / "trimtab" / "verdict.json").exists():
            break
        time.sleep(0.05)
    return status_of(run_dir)


@pytest.fixture(scope="module")
def unobserved(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Return the weights of the run without an observer."""
    run_dir = tmp_path_factory.mktemp("unobserved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMTAB_OBSERVER", "off")
        weights: Weights = train(str(run_dir), "close").state_dict()
    assert not (run_dir / "trimtab" / "observer.jsonl").exists()
    return weights


def postmortems(run_dir: Path) -> list[str]:
    return [path.read_text() for path in (run_dir / "trimtab").rglob("postmortem.md")]


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        pytest.param("close", "ended", "closed", marks=pytest.mark.slow),
        ("raise", "ended", "raised RuntimeError"),
        ("kill", "died", "no end was written"),
        pytest.param("segv", "died", "no end was written", marks=pytest.mark.slow),
        pytest.param("_exit", "died", "no end was written", marks=pytest.mark.slow),
        pytest.param("oom", "died", "no end was written", marks=pytest.mark.slow),
        ("hang", "stalled", "no record for over 1 s"),
    ],
)
def test_the_postmortem_and_how_the_run_ended_are_there(
    tmp_path: Path, how: str, status: str, said: str
) -> None:
    with started(tmp_path, how) as process:
        facts = wait_for_end(tmp_path)
        process.kill()
    assert facts["status"] == status
    assert said in facts["how"]
    assert any(str(SPIKE) in text for text in postmortems(tmp_path))
    report = trimtab.diagnose(tmp_path)
    if status == "died":
        assert any(note.startswith("the run died after step") for note in report.notes)


def test_where_everything_was_killed_a_later_observer_writes_it_elsewhere(tmp_path: Path) -> None:
    with started(tmp_path / "run", "group"):
        pass
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    lock = tmp_path / "copy" / "trimtab" / "journal.lock"
    lock.write_text("pid 1 on another-machine\n")
    for place, status in ((tmp_path / "run", "died"), (tmp_path / "copy", "stalled")):
        judge_to_end(RunDirectory(place))
        assert any(str(SPIKE) in text for text in postmortems(place))
        assert status_of(place)["status"] == status


# A process whose end cannot be heard is not waited for.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "name",
    some_of(["_start", "check", "_hear", "_take", "catch_up", "close"], "_hear", "close"),
)
def test_a_bug_in_what_hears_the_observer_costs_no_record_and_no_bit(
    name: str, unobserved: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.live.host.recorder.OBSERVER_SECONDS", 0.0)
    with planted(f"trimtab.journal.observer_process.ObserverProcess.{name}", lambda: True):
        try:
            trained = train(str(tmp_path / "run"), "close").state_dict()
        finally:
            for child in children(os.getpid()):
                os.kill(child, signal.SIGKILL)
    assert all(torch.equal(trained[key], unobserved[key]) for key in unobserved)
    if name != "_start":  # else `watch` has stepped aside, with one line
        assert len(journal_of(tmp_path / "run")) == STEPS
    gc.collect()  # here, where an abandoned process is expected, and not in the next test


def test_an_observer_that_is_killed_again_and_again_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    train(str(tmp_path), "close")
    forget(tmp_path)
    observe(tmp_path)
    expected = files(tmp_path)
    forget(tmp_path)
    for delay in (0.05, 0.15, 0.3):
        with forked.Forked(["-m", "trimtab.observe", str(tmp_path), "--once"]) as process:
            time.sleep(delay)
            process.kill()
    observe(tmp_path)
    assert files(tmp_path) == expected


def forget(run_dir: Path) -> None:
    """Remove everything that an observer has written."""
    home = run_dir / "trimtab"
    shutil.rmtree(home / "incidents")
    for name in ("observer.jsonl", "verdict.json", "judge.json", "verdicts.json"):
        (home / name).unlink()


def files(run_dir: Path) -> dict[str, str]:
    """Return the files of an observer."""
    home = run_dir / "trimtab"
    chosen = [home / "observer.jsonl", home / "verdict.json", *home.rglob("incidents/*/*")]
    return {str(path.relative_to(home)): path.read_text() for path in chosen}


def test_an_observer_that_dies_is_started_once_more_and_then_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.live.host.recorder.OBSERVER_SECONDS", 0.0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for _ in range(3):
            for child in children(os.getpid()):
                os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
            for _ in range(5):
                take_step(guard, optimizer, model(torch.randn(4, 2)).square().mean())
    assert len(journal_of(tmp_path)) == 15
    said = [message for message in caplog.messages if "nobody judges this run" in message]
    assert len(said) == 1
    assert f"trimtab observe {tmp_path}" in said[0]


RAISES = "raise ZeroDivisionError('planted')"
LOOPS = "while True: pass"
EATS = "self.taken = [__import__('numpy').zeros(2**28, 'b') for _ in range(2**10)]"


@pytest.mark.parametrize("what", some_of([RAISES, LOOPS, EATS], LOOPS, EATS))
def test_a_detector_that_misbehaves_does_not_touch_training(
    what: str,
    unobserved: Weights,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # One that loops is waited for in vain; the others must get the time that they need here.
    seconds = 1.0 if what is LOOPS else 60.0
    monkeypatch.setattr(observer_process, "CLOSE_SECONDS", seconds)
    monkeypatch.setattr("trimtab.live.host.recorder.LAST_SECONDS", seconds)
    plugin = f"""
from trimtab.core.detector import Detector


class Planted(Detector):
    name = "planted"

    def update(self, row):
        {what}
        return []
"""
    install_plugin(tmp_path, monkeypatch, "trimtab.detectors", "planted", plugin, "Planted")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    began = time.monotonic()
    trained = train(str(tmp_path / "run"), "close").state_dict()
    assert what is not LOOPS or time.monotonic() - began < 30.0
    assert len(journal_of(tmp_path / "run")) == STEPS
    assert all(torch.equal(trained[name], unobserved[name]) for name in unobserved)
    if what is LOOPS:
        assert "the observer still works" in caplog.text
    else:
        assert postmortems(tmp_path / "run")
    for child in children(os.getpid()):
        os.kill(child, signal.SIGKILL)


def test_a_second_observer_of_a_run_writes_nothing(tmp_path: Path) -> None:
    train(str(tmp_path), "close")
    before = files(tmp_path)
    holder = NewsWriter(RunDirectory(tmp_path))
    (tmp_path / "trimtab" / "verdict.json").write_text("{}")
    assert observe(tmp_path)
    assert json.loads((tmp_path / "trimtab" / "verdict.json").read_text()) == {}
    holder.close()
    observe(tmp_path)
    assert files(tmp_path) == before
