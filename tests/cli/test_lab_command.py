"""`trimtab lab train`, alone and under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.kit.printed_json import validate
from typer.testing import CliRunner

from trimtab.cli.commands import lab_train as lab
from trimtab.cli.main import app
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.train_config import Dtype, Engine, TrainConfig

SMALL = ["--size", "0.15M", "--batch-size", "4", "--length", "16", "--corpus-bytes", "400000"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _call(cache: Path, run: Path, *options: str, **environment: str) -> tuple[int, str]:
    runner = CliRunner(env={"XDG_CACHE_HOME": str(cache), "COLUMNS": "200", **environment})
    result = runner.invoke(app, ["lab", "train", *SMALL, "--run-dir", str(run), *options])
    return result.exit_code, result.output


def test_train_resume_and_report(cache: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, output = _call(cache, run, "--steps", "4", "--dtype", "fp32", "--lr", "2e-3", "--measure")
    assert code == 0, output
    assert "trained to step 4, held-out loss 6." in output
    assert f"trimtab diagnose {run}" in output
    block = read_journal(RunDirectory(run)).block
    assert block.column("lr").values[0] == 2e-3  # no warm-up in so short a run
    assert block.column("max_attention_logit").recorded
    assert RunDirectory(run).read_manifest()["dtype"] == "fp32"

    code, output = _call(cache, run, "--steps", "4", "--dtype", "fp32", "--lr", "2e-3")
    assert (code, "already has a run" in output) == (2, True)
    code, output = _call(cache, run, "--steps", "4", "--dtype", "fp32", "--resume")
    assert (code, "started with optimizer" in output) == (2, True)
    again = ("--steps", "4", "--dtype", "fp32", "--lr", "2e-3", "--resume")
    code, output = _call(cache, run, *again)
    assert code == 0, output
    assert "trained to step 4 from step 4" in output
    code, output = _call(cache, run, *again, "--json")
    validate("lab train", json.loads(output))
    code, output = _call(cache, run, *again, "--engine", "fsdp2")
    assert (code, "torchrun --standalone" in output) == (2, True)


def test_the_progress_bar_shows_the_loss_in_a_terminal_only(cache: Path, tmp_path: Path) -> None:
    code, output = _call(cache, tmp_path / "seen", "--steps", "2", FORCE_COLOR="1")
    assert code == 0, output
    assert "loss 6." in output.replace("held-out loss", "")
    code, output = _call(cache, tmp_path / "unseen", "--steps", "2")
    assert output.splitlines()[0].startswith("trained to step 2")


def test_under_torchrun_only_one_rank_prints(cache: Path, tmp_path: Path) -> None:
    _call(cache, tmp_path / "warm", "--steps", "1")  # tokenizes the text, if no other test has
    command = ["lab", "train", *SMALL, "--steps", "4", "--run-dir", str(tmp_path / "run")]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "trimtab.cli", *command, "--engine", "hsdp"],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained to step 4") == 1
    assert RunDirectory(tmp_path / "run").read_manifest()["world"] == 2
    assert len(read_journal(RunDirectory(tmp_path / "run")).block) == 4


def test_names_and_defaults_are_those_of_the_lab() -> None:
    # The command repeats them so that `--help` does not import torch.
    assert [size.value for size in lab.Size] == list(SIZES)
    assert [dtype.value for dtype in lab.DtypeName] == [dtype.value for dtype in Dtype]
    assert [engine.value for engine in lab.EngineName] == [engine.value for engine in Engine]
    settings = {"steps": 7, "batch_size": 8, "length": 128, "checkpoint_steps": 100}
    config = lab._config(lab.Size.S1M, lab.DtypeName.BF16, lab.EngineName.ALONE, 1e-3, settings)
    assert config == TrainConfig(model=SIZES["1M"], steps=7)
    assert config.optimizer == OptimizerConfig(lr=1e-3)
