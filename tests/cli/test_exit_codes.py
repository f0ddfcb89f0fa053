"""The page of exit codes is what the code says."""

import re
from pathlib import Path

from tests.cli.test_json_schema import COMMANDS
from tests.kit import forked

from trimtab.cli.options import ExitCode
from trimtab.journal.exit_request import RunExit

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
