"""What commands promise to programs: what `--json` prints, three with a schema, and exit codes."""

import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator, ValidationError
from tests.cli import test_commands, test_live_commands
from tests.kit import forked
from tests.kit.printed_json import SCHEMA, call, validate
from tests.kit.synthetic import block_of, falling_loss, troubled_run
from tests.kit.token_files import make_documents, write_bin
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.cli.options import ExitCode
from trimtab.journal.exit_request import RunExit

WITH_JSON = {
    *(
        "diagnose",
        "check",
        "compare",
        "observe",
        "checkpoints list",
        "selftest",
        "corpus show",
    ),
}


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its name on the command line."""
    if not hasattr(group, "commands"):
        yield name.strip(), group
        return
    for part, command in group.commands.items():
        yield from commands(command, f"{name} {part}")


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_that_judges_has_json() -> None:
    with_json = {
        name
        for name, command in COMMANDS.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert with_json == WITH_JSON


def test_the_schema_is_one_and_names_its_commands() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert [one["$ref"] for one in SCHEMA["oneOf"]] == [
        f"#/$defs/{command}" for command in ("diagnose", "check", "compare", "brief")
    ]


def test_a_wrong_output_is_refused(tmp_path: Path) -> None:
    printed = call("diagnose", test_commands.write_csv(troubled_run(), tmp_path / "r.csv"), code=1)
    printed["incidents"][0]["incident"]["onset"]["step"] = "600"
    with pytest.raises(ValidationError):
        validate("diagnose", printed)


@pytest.mark.parametrize("rules", ["trimtab", "textbook"])
def test_diagnose(tmp_path: Path, rules: str) -> None:
    log = test_commands.write_csv(troubled_run(), tmp_path / "run.csv")
    assert len(call("diagnose", log, "--rules", rules, code=1)["incidents"]) == 2


def test_diagnose_with_files(tmp_path: Path) -> None:
    run = test_commands.write_run(troubled_run(), tmp_path / "run")
    printed = call("diagnose", run, "--write", "--price", 10, code=1)
    assert printed["goodput"]["steps_done"] == 1200
    assert all(Path(path).exists() for path in (printed["page"], *printed["postmortems"]))


def test_compare(tmp_path: Path) -> None:
    healthy = test_commands.write_csv(block_of({"loss": falling_loss(300)}), tmp_path / "a.csv")
    other = test_commands.write_csv(block_of({"loss": falling_loss(300) + 1}), tmp_path / "b.csv")
    (found,) = call("compare", healthy, healthy)["comparisons"]
    assert found["within"]
    assert len(call("compare", healthy, other, healthy, code=1)["comparisons"]) == 2


def test_check(tmp_path: Path) -> None:
    config = tmp_path / "plan.toml"
    config.write_text("[training]\noptimizer = 'adamw'\nlr = 0.5\nsteps = 1000\nepsilon = 0.01\n")
    assert call("check", config, "--set", "checkpoint_steps=100", code=1)["findings"]


def test_live_runs(tmp_path: Path) -> None:
    # In a process that ends: one that lives may go on.
    writer = multiprocessing.Process(target=test_live_commands.write_run, args=(tmp_path,))
    writer.start()
    writer.join()
    assert call("observe", tmp_path, "--once")["text"].startswith("ended")


def test_corpus(tmp_path: Path) -> None:
    write_bin(tmp_path / "t.bin", make_documents())
    scan = ["corpus", "scan", str(tmp_path / "t.bin"), "--out", str(tmp_path / "stats")]
    assert CliRunner().invoke(app, [*scan, "--separator", "0"]).exit_code == 0
    assert call("corpus show", tmp_path / "stats", code=1)["tokens"] > 0


PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
CODES = PAGE.split("\n## Exit codes\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without their headers."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [line for line in cells if line[0] not in {"exit code", "command", "---"}]


def stated(command: str) -> str:
    """Return what the help of a command says about its exit code."""
    text = " ".join((COMMANDS[command].help or "").split())
    found = re.search(r"Exit code: (.*?)\.(?: |$)", text)
    assert found, f"the help of {command} has no exit codes"
    return found[1]


def test_the_codes_on_the_page_are_those_of_the_code() -> None:
    shown = {(int(code), name) for code, name, _ in rows(CODES)}
    ours = {(code.value, code.name) for code in ExitCode}
    assert shown == ours | {(code.value, code.name) for code in RunExit}


def test_every_command_is_on_the_page_as_its_help_says() -> None:
    for name, command in COMMANDS.items():
        codes = stated(name)
        assert command.hidden or f"Exit code: {codes}." in PAGE


def test_an_error_that_nobody_expected_is_no_finding() -> None:
    script = (
        "import trimtab.cli.main as m\n"
        "def broken(*args, **kwargs): raise ZeroDivisionError\n"
        "m.app = broken\n"
        "m.main()\n"
    )
    done = forked.run("-c", script)
    assert done.returncode == ExitCode.BUG
    assert "ZeroDivisionError" in done.stderr
    assert "please report it" in done.stderr
