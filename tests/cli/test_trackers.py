"""From the files of the real trackers to a diagnosis, through the command."""

import json
from pathlib import Path

import pytest
from tests.readers.make_fixtures import FIXTURES
from typer.testing import CliRunner

from trimtab.cli.main import app

LOGS = {
    "hf": FIXTURES / "hf" / "every_1.json",
    "tensorboard": FIXTURES / "tensorboard",
    "wandb": FIXTURES / "wandb",
    "mlflow": FIXTURES / "mlflow" / "mlruns",
    "lightning": FIXTURES / "lightning" / "lightning_logs" / "version_0",
}


@pytest.mark.parametrize("format", LOGS)
def test_the_nan_is_found(format: str) -> None:
    result = CliRunner().invoke(app, ["diagnose", str(LOGS[format]), "--json"])
    assert result.exit_code == 1, result.output
    printed = json.loads(result.stdout)
    assert printed["format"] == format
    assert "non-finite loss" in json.dumps(printed["incidents"])


def test_the_zero_that_hf_wrote_is_reported_as_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["diagnose", str(LOGS["hf"])])
    printed = " ".join(result.stdout.split())
    assert "treated as NaN, which HF's Trainer writes this way: 2." in printed
    assert "-> nan" in printed
