"""The tutorial prints what its commands print, and its two configs are one fix apart."""

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.excerpts import matches
from trimtab import read_log
from trimtab.cli.main import app

FOLDER = Path(__file__).parents[1] / "docs" / "tutorial"
PAGE = (FOLDER / "index.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```\n\$ trimtab ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
EXIT_CODES = {
    "diagnose spiked.csv": 1,
    "diagnose spiked.csv --rules textbook": 1,
    "check train.toml": 1,
    "check fixed.toml": 0,
    "diagnose fixed.csv": 0,
    "compare spiked.csv fixed.csv": 1,
}


def test_all_commands_are_shown() -> None:
    assert [command for command, _ in SHOWN] == list(EXIT_CODES)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(app, command.split())
    assert matches(shown, result.stdout), result.output
    assert result.exit_code == EXIT_CODES[command]


def test_the_fix_is_what_the_page_shows() -> None:
    before, after = (
        tomllib.loads((FOLDER / name).read_text())["training"]
        for name in ("train.toml", "fixed.toml")
    )
    (lines,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert before | tomllib.loads(lines) == after


def test_the_last_losses_are_those_of_the_logs() -> None:
    ends = []
    for name in ("spiked.csv", "fixed.csv"):
        block = read_log(FOLDER / name).block
        ends.append(f"{block.column('loss').values[-50:].mean():.3f}")
    assert f"the last 50 steps is {ends[0]}, and {ends[1]} after the fix" in " ".join(PAGE.split())


def test_the_script_trains_and_its_rate_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    config = (FOLDER / "train.toml").read_text()
    short = config.replace("steps = 1200", "steps = 6").replace("steps = 100", "steps = 2")
    (tmp_path / "train.toml").write_text(short)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "train.toml"])
    runpy.run_path(str(FOLDER / "train.py"), run_name="__main__")
    (tmp_path / "train.csv").write_text(capsys.readouterr().out)
    block = read_log(tmp_path / "train.csv").block
    rates = block.column("lr").values
    assert (rates[3:] > rates[2:-1]).sum() == 1  # after the warm-up
    assert block.column("loss").values[0] == pytest.approx(5.71, abs=0.3)  # as in the log
