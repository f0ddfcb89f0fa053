"""`--config` and `--set`, on every command that judges."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_commands import write_csv, write_run
from tests.kit.synthetic import block_of, falling_loss
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.core.block import Block

runner = CliRunner()


def borderline() -> Block:
    """Return a run with a spike that is over the thresholds, but not over twice the thresholds."""
    loss = falling_loss(900, noise=0.02)
    loss[600:603] += 0.2
    return block_of({"loss": loss, "grad_norm": np.full(900, 0.5)})


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_csv(borderline(), tmp_path / "run.csv")


@pytest.mark.parametrize("name", ["threshold_scale", "detect.threshold_scale"])
def test_the_threshold_scale_decides_about_a_borderline_spike(log: Path, name: str) -> None:
    for scale, code in ((1, 1), (2, 0)):
        result = runner.invoke(app, ["diagnose", "run.csv", "--set", f"{name}={scale}"])
        assert result.exit_code == code, result.output


def test_a_config_file_is_read_and_the_command_line_stands_above_it(log: Path) -> None:
    for text in ("[detect]\nthreshold_scale = 2\n", "[tool.trimtab.detect]\nthreshold_scale = 2\n"):
        Path("trimtab.toml").write_text(text)
        call = ["diagnose", "run.csv", "--config", "trimtab.toml"]
        assert runner.invoke(app, call).exit_code == 0
        assert runner.invoke(app, [*call, "--set", "threshold_scale=1"]).exit_code == 1


def test_the_rules_of_the_config_file_judge_unless_others_are_given(log: Path) -> None:
    Path("trimtab.toml").write_text('rule_set = "textbook"\n')
    call = ["diagnose", "run.csv", "--json", "--config", "trimtab.toml"]
    assert json.loads(runner.invoke(app, call).stdout)["rules"] == "textbook"
    printed = runner.invoke(app, [*call, "--rules", "trimtab"]).stdout
    assert json.loads(printed)["rules"] == "trimtab"


def test_settings_decide_what_is_written(tmp_path: Path) -> None:
    root = write_run(borderline(), tmp_path / "x1")
    incidents = root / "trimtab" / "incidents"
    runner.invoke(app, ["diagnose", str(root), "--write"])
    assert list(incidents.iterdir())
    runner.invoke(app, ["diagnose", str(root), "--write", "--set", "threshold_scale=2"])
    assert not list(incidents.iterdir())


def test_check_reads_its_rules_from_the_same_file(log: Path) -> None:
    Path("plan.toml").write_text('[training]\noptimizer = "adamw"\nlr = 1e-3\nepsilon = 0.1\n')
    Path("trimtab.toml").write_text('[check]\noff = ["TT004"]\n[detect]\nthreshold_scale = 2\n')
    call = ["check", "plan.toml", "--json"]
    found = {f["id"] for f in json.loads(runner.invoke(app, call).stdout)["findings"]}
    result = runner.invoke(app, [*call, "--config", "trimtab.toml"])
    assert "TT004" in found
    assert {f["id"] for f in json.loads(result.stdout)["findings"]} == found - {"TT004"}
