"""A run directory of a stranger may hold pipes and devices: they are damage, never a hang."""

import os
import shutil
from pathlib import Path

import pytest
from tests.kit import forked
from tests.kit.synthetic import falling_loss

from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.files import open_regular, read_regular
from trimtab.journal.writer import JournalLimits

READ = """
import sys, pathlib
from typer.testing import CliRunner
from trimtab.cli.main import app
from trimtab.journal import RunDirectory
from trimtab.journal.exit_request import ExitRequest
from trimtab.journal.follow import Follower
from trimtab.observe.server.hub import Hub

for folder in map(pathlib.Path, sys.argv[1:]):
    run = RunDirectory(folder)
    print(folder, CliRunner().invoke(app, ["diagnose", str(folder)]).exit_code, flush=True)
    hub = Hub([folder.parent])
    hub.poll()
    hub.close()
    with Follower(run) as follower:
        follower.poll()
    ExitRequest.read(run.home)
print("done")
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "whole")
    journal = JournalWriter(run, JournalLimits(segment_records=100))
    for step, loss in enumerate(falling_loss(250)):
        journal.append(step, {"loss": float(loss)})
    journal.close()
    run.write_manifest({"schema": 1})
    for name in ("exit.json", "notes.log", "observer.jsonl", "judge.json"):
        (run.home / name).write_text("{}")
    (run.home / "ship").mkdir()
    (run.home / "ship" / "alerts.json").write_text("{}")
    (run.incidents / "0001-step-000100").mkdir(parents=True)
    (run.incidents / "0001-step-000100" / "batch.json").write_text("{}")
    return run


def replace_by(kind: str, path: Path) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


def test_no_file_of_a_run_makes_a_reader_wait(run: RunDirectory, tmp_path: Path) -> None:
    files = [path for path in sorted(run.home.rglob("*")) if path.is_file()]
    folders = []
    for number, path in enumerate(files):
        for kind in ("pipe", "device"):
            folder = tmp_path / f"{kind} {number}" / "run"
            shutil.copytree(run.root, folder)
            replace_by(kind, folder / path.relative_to(run.root))
            folders.append(str(folder))
    done = forked.run("-c", READ, *folders)
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr[-2000:]
    assert len(files) >= 9


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert read_regular(path) == b"abc"
    replace_by(kind, path)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path)
