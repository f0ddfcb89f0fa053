"""The examples, as a new user would run them: copied into an empty folder."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from tests.kit import forked
from trimtab.cli.main import app
from trimtab.journal import RunDirectory, read_journal

EXAMPLES = Path(__file__).parents[1] / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def _run(name: str, folder: Path, *launcher: str) -> str:
    shutil.copy(EXAMPLES / name, folder)
    done = subprocess.run(
        [sys.executable, *launcher, name],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "launcher", "tokens"),
    [
        ("plain_loop.py", ("-W", "error"), 64),
        ("ddp.py", TORCHRUN, 128),
        pytest.param("fsdp2.py", TORCHRUN, 128, marks=pytest.mark.slow),
    ],
)
def test_an_example_trains_and_its_last_line_leads_on(
    name: str, launcher: tuple[str, ...], tokens: int, tmp_path: Path
) -> None:
    printed = _run(name, tmp_path, *launcher)
    assert printed.count("last loss") == 1  # of the first rank only
    command = printed.split("now: trimtab ")[1].split()
    block = read_journal(RunDirectory(tmp_path / command[1])).block
    losses = block.column("loss").values
    assert len(losses) == 300
    assert losses[0] == pytest.approx(math.log(256), abs=0.2)
    assert losses[-50:].mean() < 2.5
    assert set(block.column("tokens").values) == {tokens}  # of all ranks together
    report = CliRunner().invoke(app, [command[0], str(tmp_path / command[1])])
    assert report.exit_code == 0
    assert "300 of 300 steps kept" in report.stdout


def test_the_example_without_torch_shows_its_broken_batch(tmp_path: Path) -> None:
    printed = _run("numpy_loop.py", tmp_path)
    command = printed.split("now: trimtab ")[1].split()
    report = CliRunner().invoke(app, [command[0], str(tmp_path / command[1])])
    assert "step 200" in report.stdout


OF_TRAINERS = {
    "accelerate_loop.py": ("accelerate", "runs/accelerate", 100),
    "hf_trainer.py": ("transformers", "runs/hf", 20),
    "lightning_trainer.py": ("lightning", "runs/pl", 100),
    "trl_sft.py": ("trl", "runs/sft", 10),
}
"""By name: the package, the run directory, the number of steps."""

ELSEWHERE = {"deepspeed_engine.py", "torchtitan_flag.py"}
"""Tried where their packages are: in tests/integrations."""


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_an_example_of_a_trainer_records_every_step(name: str, tmp_path: Path) -> None:
    package, run_dir, steps = OF_TRAINERS[name]
    pytest.importorskip(package)
    shutil.copy(EXAMPLES / name, tmp_path)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = forked.run(name, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"now: trimtab diagnose {run_dir}" in done.stdout
    losses = read_journal(RunDirectory(tmp_path / run_dir)).block.column("loss")
    assert len(losses.values) == steps
    assert losses.finite.all()


def test_every_example_is_tested() -> None:
    own = {"plain_loop.py", "ddp.py", "fsdp2.py", "numpy_loop.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == own | OF_TRAINERS.keys() | ELSEWHERE


def test_a_protected_example_keeps_one_bad_batch_out_of_the_weights(tmp_path: Path) -> None:
    """What docs/live.md asks its reader to try, and what it says they will see."""
    page = (EXAMPLES.parent / "docs" / "live.md").read_text(encoding="utf-8")
    code = (EXAMPLES / "plain_loop.py").read_text(encoding="utf-8")
    changed = next(block for block in page.split("```python\n") if "if n == 200" in block)
    start, end = code.index("    for _ in"), code.index("        loss.backward")
    code = code[:start] + changed.split("```")[0] + code[end:]
    code = code.replace('run_dir="runs/plain")', 'run_dir="runs/plain", mode="protect")')
    (tmp_path / "protected.py").write_text(code, encoding="utf-8")
    done = forked.run("protected.py", cwd=tmp_path)
    assert "step 200 discarded, loss not finite and grad norm not finite" in done.stderr
    assert math.isfinite(float(done.stdout.split("last loss ")[1].split(";")[0]))
    report = CliRunner().invoke(app, ["diagnose", str(tmp_path / "runs" / "plain")])
    assert "1 step discarded, kept out of the weights: 200" in report.stdout
    assert "299 of 300 steps kept" in report.stdout
