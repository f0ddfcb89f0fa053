"""`trimtab lab train`, alone and under torchrun."""

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from typer.testing import CliRunner

from trimtab.cli.commands import lab
from trimtab.cli.main import app
from trimtab.cli.options import Size
from trimtab.core.errors import ConfigError
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.train_config import TrainConfig

SMALL = ["--size", "0.15M", "--set", "batch_size=4", "--set", "length=16"]
SMALL += ["--set", "corpus_bytes=400000"]


def _call(cache: Path, run: Path, *options: str, **environment: str) -> tuple[int, str]:
    runner = CliRunner(env={"XDG_CACHE_HOME": str(cache), "COLUMNS": "200", **environment})
    result = runner.invoke(app, ["lab", "train", str(run), *SMALL, *options])
    return result.exit_code, result.output


def test_train_resume_and_report(cache: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    usual = ("--steps", "4", "--set", "dtype=fp32")
    again = (*usual, "--set", "lr=2e-3")
    code, output = _call(cache, run, *again, "--set", "measure=true")
    assert code == 0, output
    assert "trained to step 4, held-out loss 6." in output
    assert f"trimtab diagnose {run}" in output
    block = read_journal(RunDirectory(run)).block
    assert block.column("lr").values[0] == 2e-3  # no warm-up in so short a run
    assert block.column("max_attention_logit").recorded
    assert RunDirectory(run).read_manifest()["dtype"] == "fp32"

    code, output = _call(cache, run, *again)
    assert (code, "already has a run" in output) == (2, True)
    code, output = _call(cache, run, *usual, "--resume")
    assert (code, "started with optimizer" in output) == (2, True)
    code, output = _call(cache, run, *again, "--resume")
    assert code == 0, output
    assert "trained to step 4 from step 4" in output


def test_the_progress_bar_shows_the_loss_in_a_terminal_only(cache: Path, tmp_path: Path) -> None:
    code, output = _call(cache, tmp_path / "seen", "--steps", "2", FORCE_COLOR="1")
    assert code == 0, output
    assert "loss 6." in output.replace("held-out loss", "")
    code, output = _call(cache, tmp_path / "unseen", "--steps", "2")
    assert output.splitlines()[0].startswith("trained to step 2")


def test_names_and_settings_are_those_of_the_lab() -> None:
    # The command repeats the sizes so that `--help` does not import torch.
    assert [size.value for size in Size] == list(SIZES)
    assert lab.make_config("1M", 7, {}) == TrainConfig(model=SIZES["1M"], steps=7)
    settings = {field.name for field in dataclasses.fields(TrainConfig)}
    with pytest.raises(ConfigError) as refused:
        lab.make_config("1M", 7, {"": 0})
    named = set(str(refused.value).split("choose from ")[1].split(", "))
    assert named - {"lr"} == settings - {"model", "steps", "optimizer"}
