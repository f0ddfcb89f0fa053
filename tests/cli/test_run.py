"""`trimtab run`: a supervised command is launched again when it asks for it, within a budget."""

import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.kit import forked

from trimtab.journal import RunDirectory
from trimtab.journal.exit_request import ExitRequest, RunExit, announce_run, announced_run

SCRIPT = """
    import os, pathlib, signal, sys, time
    from trimtab.journal import JournalWriter, RunDirectory, read_journal
    from trimtab.journal.exit_request import ExitRequest, RunExit, announce_run
    from trimtab.journal.writer import JournalLimits

    here = pathlib.Path(sys.argv[1])
    run = RunDirectory(here)
    launches = here / "launches"
    number = int(launches.read_text()) if launches.exists() else 0
    launches.write_text(str(number + 1))
    block = read_journal(run).block if run.exists() else ()
    first = int(block.step[-1]) + 1 if len(block) else 0
    journal = JournalWriter(run, JournalLimits())
    announce_run(run)

    def train(steps):
        for step in range(first, first + steps):
            journal.append(step, {"loss": 1.0})
        journal.close("end")

    def end(code, reason="the weights are hurt"):
        ExitRequest(code=RunExit(code), reason=reason, step=first).write(run)
        sys.exit(int(os.environ.get("HIDDEN", code)))
"""


def write_script(folder: Path, body: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT) + textwrap.dedent(body))
    return path


def supervise(folder: Path, body: str, *options: str, **environment: str) -> tuple[int, str, int]:
    """Exit code, standard error and number of launches of a script under `trimtab run`."""
    script = write_script(folder, body)
    done = forked.run(
        *("-m", "trimtab.cli", "run", "--delay", "0", *options, "--"),
        *(sys.executable, script, folder),
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr, int((folder / "launches").read_text())


def test_a_run_that_asks_for_it_is_launched_again_though_its_exit_code_is_hidden(
    tmp_path: Path,
) -> None:
    code, printed, launches = supervise(tmp_path, "train(10)\nif number < 2: end(75)", HIDDEN="1")
    assert (code, launches) == (0, 3)
    assert "relaunch 1 after step 9: the weights are hurt" in printed
    assert "relaunch 2 after step 19: the weights are hurt" in printed


def test_a_run_that_must_not_be_relaunched_ends_with_76(tmp_path: Path) -> None:
    code, printed, launches = supervise(
        tmp_path, "train(10)\nend(76, 'fp16 overflows')", HIDDEN="1"
    )
    assert (code, launches) == (76, 1)
    assert "the run has ended itself at step 0: fp16 overflows" in printed


def test_launches_without_progress_use_up_the_budget(tmp_path: Path) -> None:
    code, printed, launches = supervise(tmp_path, "train(10 if first < 10 else 0)\nend(75)")
    assert (code, launches) == (75, 4)
    assert "3 launches in a row got no further; giving up" in printed


def test_a_total_of_relaunches_ends_it_too(tmp_path: Path) -> None:
    code, _, launches = supervise(tmp_path, "train(5)\nend(75)", "--max-relaunches", "2")
    assert (code, launches) == (75, 3)


def test_a_crash_ends_it_unless_crashes_are_included(tmp_path: Path) -> None:
    body = "train(10)\nif number < 1: os.kill(os.getpid(), signal.SIGKILL)"
    code, _, launches = supervise(tmp_path, body)
    assert (code, launches) == (137, 1)
    (tmp_path / "launches").unlink()
    code, printed, launches = supervise(tmp_path, body, "--crashes")
    assert (code, launches) == (0, 2)
    assert "exit code -9" in printed


def test_a_request_of_an_earlier_launch_is_not_read_again(tmp_path: Path) -> None:
    body = "train(10)\nif number < 1: end(75)\nsys.exit(4)"
    assert supervise(tmp_path, body)[::2] == (4, 2)
    assert ExitRequest.read(RunDirectory(tmp_path).home) is None


def test_sigterm_reaches_the_run_and_ends_the_supervisor(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: (train(1), end(75)))
        (here / "ready").touch()
        time.sleep(60)
        """,
    )
    command = ["-m", "trimtab.cli", "run", "--", sys.executable, str(script), str(tmp_path)]
    supervisor = forked.Forked(command)
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=30) == 75
    assert (tmp_path / "launches").read_text() == "1"


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"code": 3, "reason": "", "step": 0}'])
def test_a_damaged_file_is_no_request(tmp_path: Path, text: str) -> None:
    (tmp_path / "exit.json").write_text(text)
    (tmp_path / "run.json").write_text(text)
    assert ExitRequest.read(tmp_path) is None
    assert announced_run(tmp_path) is None


def test_a_run_is_announced_and_its_old_request_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "supervisor"
    folder.mkdir()
    monkeypatch.setenv("TRIMTAB_SUPERVISOR", str(folder))
    run = RunDirectory(tmp_path / "run")
    run.home.mkdir(parents=True)
    request = ExitRequest(code=RunExit.STOP, reason="x", step=3)
    request.write(run)
    assert ExitRequest.read(run.home) == ExitRequest.read(folder) == request
    announce_run(run)
    assert ExitRequest.read(run.home) is None
    assert announced_run(folder) == run
