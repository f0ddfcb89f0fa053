"""Colour, completion and silence."""

import os
import re
from pathlib import Path

import pytest
from tests.kit import forked
from typer.testing import CliRunner

from trimtab.cli.main import app

LOG = Path(__file__).parents[2] / "examples" / "run.csv"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)(?:;\d+)*m")


UNSET = ("NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE")


def trimtab(*arguments: str, **variables: str) -> str:
    """Return what the command prints, with these environment variables."""
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    script = "from trimtab.cli.main import app; app(prog_name='trimtab')"
    done = forked.run("-c", script, *arguments, env={**environment, **variables})
    return done.stdout + done.stderr


def test_no_color_is_respected() -> None:
    """In this process: the report asks for the terminal when it is printed."""
    for variables, has_colour in (
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({}, False),
    ):
        unset = dict.fromkeys(UNSET)
        result = CliRunner(env={**unset, **variables}).invoke(app, ["diagnose", str(LOG)])
        assert bool(COLOUR.search(result.output)) == has_colour


@pytest.mark.parametrize("arguments", [("diagnose", "absent"), ("diagnose", "--absent")])
def test_errors_respect_it_too(arguments: tuple[str, ...]) -> None:
    assert not COLOUR.search(trimtab(*arguments, FORCE_COLOR="1", NO_COLOR="1"))


def complete(words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    count = str(len(words.split()) - (not words.endswith(" ")))
    variables = {"COMP_WORDS": words, "COMP_CWORD": count, "_TRIMTAB_COMPLETE": "complete_bash"}
    return CliRunner(env=variables).invoke(app, prog_name="trimtab").output.split()


def test_the_shell_completes_commands_options_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.csv").touch()
    assert complete("trimtab dia") == ["diagnose"]
    assert "--json" in complete("trimtab run.csv --js")
    assert {"scan", "merge", "show"} <= set(complete("trimtab corpus "))
    assert "--json" in complete("trimtab diagnose --js")
    assert complete("trimtab diagnose x --rules te") == ["textbook"]
    assert set(complete("trimtab diagnose x --format mlp")) == {"mlperf"}
    assert complete("trimtab observe x --to ml") == ["mlflow"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_can_be_printed_for_a_shell(shell: str) -> None:
    printed = trimtab(_TRIMTAB_COMPLETE=f"source_{shell}")
    assert f"complete_{shell}" in printed
    assert "trimtab" in printed
