"""`trimtab check` on objects: the command, its output and its exit codes."""

import json
from pathlib import Path

import pytest
from tests.kit.printed_json import validate
from typer.testing import CliRunner

from trimtab.checks.catalogue import object_rules
from trimtab.cli.main import app

runner = CliRunner()

MODULE = """
from tests.kit.check_objects.faults import FAULTS, healthy
from tests.kit.check_objects.widths import make_at_width

def good():
    return healthy()

def bad():
    return next(fault.make() for fault in FAULTS if fault.id == "PF030")

def at_width(width):
    return make_at_width(is_mup=False)(width)

def wrong():
    return 3
"""
FAST = ["--off", "PF022", "--off", "PF035", "--off", "PF050"]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run_objects.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def test_a_healthy_run_exits_0_and_verbose_shows_what_passed() -> None:
    result = runner.invoke(app, ["check", "run_objects:good", "-v", *FAST])
    assert result.exit_code == 0, result.output
    assert "PF030  all" in result.stdout
    assert "does not see: optimizers that were not given" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Nothing found;")


def test_a_finding_exits_1_with_reason_and_fix() -> None:
    result = runner.invoke(app, ["check", "run_objects:bad", "--verbose", *FAST])
    assert result.exit_code == 1, result.output
    assert "error   PF030  No optimizer holds a trained parameter" in result.stdout
    assert "position.weight" in result.stdout
    assert "fix     add them to a parameter group" in result.stdout
    assert "not checked: " in result.stdout


def test_json_is_for_machines() -> None:
    result = runner.invoke(app, ["check", "run_objects:bad", "--json", *FAST])
    printed = json.loads(result.stdout)
    validate("check", printed)
    assert printed["findings"][0]["id"] == "PF030"
    assert printed["changed"] == []
    assert {"PF022", "PF035", "PF050"} == set(printed["off"])
    assert {part["id"] for part in printed["not_checked"]} >= {"PF052", "PF072"}


def test_usage_errors_exit_2() -> None:
    for command, message in (
        ("run_objects:wrong", "must return a dict"),
        ("run_objects:at_width", "at_width(width) cannot be called without arguments"),
        ("run_objects:good --widths 32,64", "good() cannot be called with the width"),
        ("run_objects:at_width --widths 32,64 --lr-range", "--lr-range"),
    ):
        result = runner.invoke(app, ["check", *command.split()])
        assert result.exit_code == 2, result.output
        assert message in result.output


def test_the_docs_list_every_test_as_it_is() -> None:
    page = (Path(__file__).parents[3] / "docs" / "check.md").read_text(encoding="utf-8")
    for rule in object_rules().values():
        cells = (rule.id, rule.title, rule.mechanism, rule.source, rule.cannot_see)
        assert f"| {' | '.join(cells)} |" in page


def test_the_json_of_the_other_tests_says_which_it_is() -> None:
    arguments = ["check", "run_objects:at_width", "--widths", "32,64,128", "--json"]
    printed = runner.invoke(app, arguments)
    assert printed.exit_code == 1, printed.output
    widths = json.loads(printed.stdout)
    assert (widths["schema"], widths["stable"]) == ("trimtab check --widths 4", False)
    rates = json.loads(
        runner.invoke(app, ["check", "run_objects:good", "--lr-range", "--json"]).stdout
    )
    assert rates["schema"] == "trimtab check --lr-range 4"
    assert rates["rates"]
