"""`trimtab checkpoints` lists what a run has, verifies it and writes nothing."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit.damage import damage, files_of
from tests.kit.printed_json import validate
from torch import nn, optim
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

runner = CliRunner(env={"COLUMNS": "140"})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that saved at 40, 80, 120 and 160 and has no record yet."""
    folder = tmp_path_factory.mktemp("saved")
    model = nn.Linear(4, 2)
    checkpoints = Checkpoints(model, optim.AdamW(model.parameters()), run_dir=folder, keep=5)
    for step in (40, 80, 120, 160):
        checkpoints.save(step)
    return folder


def run_with_checkpoints(folder: Path, saved: Path, *, records: int = 190) -> Path:
    """Write a healthy run of 190 steps that saved at 40, 80, 120 and 160."""
    shutil.copytree(saved, folder)
    directory = RunDirectory(folder)
    directory.write_manifest({})
    dice = random.Random(3)
    with JournalWriter(directory) as journal:
        for step in range(records):
            journal.append(step=step, signals={"loss": 4.0 - step / 500 + dice.gauss(0, 0.01)})
    return folder


def invoke(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["checkpoints", *map(str, arguments)])
    return result.exit_code, result.output


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_of(folder)}


def test_a_healthy_run_lists_proven_and_unproven_checkpoints(tmp_path: Path, saved: Path) -> None:
    folder = run_with_checkpoints(tmp_path / "run", saved)
    before = contents(folder)
    code, text = invoke(folder)
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["step", "verdict", "files", "size", "why"]
    assert [line[:3] for line in lines[1:5]] == [
        ["40", "proven", "verified"],
        ["80", "proven", "verified"],
        ["120", "unproven", "verified"],
        ["160", "unproven", "verified"],
    ]
    assert "A run that resumes loads step-00000160." in text
    assert contents(folder) == before
    assert invoke(folder / "trimtab")[0] == 0


def test_a_damaged_checkpoint_is_bad_and_the_exit_code_says_so(tmp_path: Path, saved: Path) -> None:
    folder = run_with_checkpoints(tmp_path / "run", saved)
    newest = folder / "trimtab" / "checkpoints" / "step-00000160"
    damage(newest / ".metadata", random.Random(1))
    before = contents(folder)
    code, text = invoke(folder)
    assert code == 1
    assert "bad" in text
    assert "damaged" in text
    assert "A run that resumes loads step-00000120." in text
    code, text = invoke(folder, "--json")
    shown: dict[str, Any] = json.loads(text)
    validate("checkpoints", shown)
    assert code == 1
    assert shown["resumes_from"] == "step-00000120"
    last = shown["checkpoints"][-1]
    assert (last["step"], last["verdict"], last["files"]) == (160, "bad", "damaged")
    assert ".metadata" in last["reason"]
    assert contents(folder) == before
    code, text = invoke(folder, "--no-verify")
    assert code == 0
    assert "not verified" in text


def test_a_divergence_makes_what_was_saved_after_its_onset_bad(tmp_path: Path, saved: Path) -> None:
    folder = run_with_checkpoints(tmp_path / "run", saved, records=100)
    with JournalWriter(RunDirectory(folder)) as journal:
        for step in range(100, 300):
            journal.append(step=step, signals={"loss": float("nan")})
    code, text = invoke(folder, "--json")
    assert code == 1
    verdicts = {e["step"]: e["verdict"] for e in json.loads(text)["checkpoints"]}
    assert verdicts == {40: "unproven", 80: "unproven", 120: "bad", 160: "bad"}


def test_it_works_without_torch(tmp_path: Path, saved: Path) -> None:
    folder = run_with_checkpoints(tmp_path / "run", saved)
    script = (
        "import sys; sys.modules['torch'] = None\n"
        f"from trimtab.cli.main import app; app(['checkpoints', {str(folder)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
