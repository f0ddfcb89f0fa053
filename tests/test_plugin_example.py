"""The example plug-in, installed beside trimtab as a user installs it."""

import json
import os
import subprocess
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.kit.synthetic import falling_loss
from trimtab.cli.main import app
from trimtab.core.errors import RestoreError
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "examples" / "plugin"


def is_installed() -> bool:
    try:
        return bool(version("trimtab-example"))
    except PackageNotFoundError:
        return False


installed = pytest.mark.skipif(
    not is_installed(), reason="pip install --no-deps ./examples/plugin to run this test"
)


def write_log(path: Path) -> Path:
    """A run in the plug-in's format that overfits from step 500 on."""
    lines = []
    for step, loss in enumerate(falling_loss(1000, noise=0.01)):
        pairs = [f"time=12:00:{step % 60:02d}", f"step={step}", f"loss={loss:.4f}"]
        if step % 50 == 0:
            pairs.append(f"eval_loss={3.0 + abs(step - 500) / 500:.4f}")
        lines.append(" ".join(pairs))
    path.write_text("\n".join(lines) + "\n")
    return path


def check_outputs(terminal: str, machine: str, folder: Path) -> None:
    """The finding is in the terminal, in the JSON and in the post-mortem, with its package."""
    assert "logfmt, 1,000 records" in terminal
    assert "eval-gap (trimtab-example 0.1.0)" in terminal
    assert "Overfitting: evaluation loss rising at step 650" in terminal
    assert "Keep the checkpoint of step 500" in terminal
    (incident,) = json.loads(machine)["incidents"]
    found = {one["detector"]: one for one in incident["incident"]["findings"]}
    finding = found["eval-gap"]
    assert finding["package"] == "trimtab-example 0.1.0"
    assert finding["step"] == 650  # the third evaluation that is worse than the best
    assert incident["cause"] == {"id": "EX1", "title": "overfitting"}
    postmortem = next(folder.rglob("postmortem.md")).read_text(encoding="utf-8")
    assert "eval-gap (trimtab-example 0.1.0)" in postmortem
    assert "Keep the checkpoint of step 500" in postmortem


@installed
def test_the_detector_and_the_reader_work_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = write_log(tmp_path / "train.logfmt")
    runner = CliRunner(env={"COLUMNS": "120"})
    shown = runner.invoke(app, ["diagnose", log.name, "--out", "out"])
    assert shown.exit_code == 1, shown.output
    machine = runner.invoke(app, ["diagnose", log.name, "--json"])
    check_outputs(shown.stdout, machine.stdout, tmp_path / "out")


@installed
def test_help_lists_all_three() -> None:
    printed = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["diagnose", "--help"]).stdout
    assert "detector eval-gap (trimtab-example 0.1.0)" in printed
    assert "reader logfmt (trimtab-example 0.1.0)" in printed
    assert "checkpointer one-file (trimtab-example 0.1.0)" in printed


@installed
def test_the_checkpointer_saves_and_resumes_a_run_exactly(tmp_path: Path) -> None:
    def launch(seed: int) -> tuple[torch.optim.Optimizer, Checkpoints]:
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        run = Checkpoints(model, optimizer, run_dir=tmp_path, checkpointer="one-file")
        return optimizer, run

    saved, run = launch(seed=0)
    run.save(3)
    assert (tmp_path / "trimtab" / "checkpoints" / "step-00000003" / "rank-0.pt").exists()
    loaded, run = launch(seed=1)
    assert run.resume().step == 3
    for mine, theirs in zip(loaded.state.values(), saved.state.values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    path = tmp_path / "trimtab" / "checkpoints" / "step-00000003" / "rank-0.pt"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RestoreError, match=r"rank-0.pt has \d+ bytes"):
        launch(seed=2)[1].resume()


@installed
def test_a_run_that_does_not_overfit_has_no_finding(tmp_path: Path) -> None:
    steps = np.arange(1000)
    lines = [
        f"step={step} loss={loss:.4f} eval_loss={loss + 0.1:.4f}"
        for step, loss in zip(steps, falling_loss(1000, noise=0.0), strict=True)
    ]
    log = tmp_path / "train.logfmt"
    log.write_text("\n".join(lines) + "\n")
    assert CliRunner().invoke(app, ["diagnose", str(log)]).exit_code == 0


@pytest.mark.slow
def test_a_user_installs_both_packages_and_runs_the_command(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: object, code: int = 0) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path,
            env=environment | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "--quiet", ROOT, PLUGIN)
    log = write_log(tmp_path / "train.logfmt")
    trimtab = tmp_path / "venv" / "bin" / "trimtab"
    assert "eval-gap (trimtab-example 0.1.0)" in run(trimtab, "diagnose", "--help")
    terminal = run(trimtab, "diagnose", log, "--out", "out", code=1)
    machine = run(trimtab, "diagnose", log, "--json", code=1)
    check_outputs(terminal, machine, tmp_path / "out")
