"""Plug-ins in the command: listed in --help, used by diagnose, left out when they fail."""

from pathlib import Path

import pytest
from tests.kit.plugins import install_plugin
from typer.testing import CliRunner

from trimtab.cli.main import app

runner = CliRunner(env={"COLUMNS": "120"})


@pytest.mark.parametrize("command", ["diagnose", "checkpoints list"])
def test_help_lists_the_plugins_with_their_package_and_loads_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "my_detector" not in runner.invoke(app, [*command.split(), "--help"]).stdout
    bomb = "raise RuntimeError('loaded')\n"
    for kind, name in (("detectors", "my_detector"), ("readers", "my_reader")):
        install_plugin(tmp_path, monkeypatch, f"trimtab.{kind}", name, bomb, "X")
    printed = runner.invoke(app, [*command.split(), "--help"]).stdout
    assert "detector my_detector (my_detector-package 1.2)" in printed
    assert "reader my_reader (my_reader-package 1.2)" in printed
