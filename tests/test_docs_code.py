"""Code on the pages: Python compiles and calls what exists, commands have options that exist."""

import ast
import importlib
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import trimtab
from trimtab.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    ROOT / "skills" / "trimtab" / "SKILL.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
CALLABLES = ("Checkpoints", "check", "diagnose", "read_log", "replay", "watch")


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page that are in one of these languages."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [block["code"] for block in found if block["language"] in languages]


def parse(code: str) -> ast.Module:
    """The code of a block; an excerpt may be indented, or end before the body of its last line."""
    code = textwrap.dedent(code).rstrip()
    if code.endswith(":"):
        code += "\n" + " " * (len(code.splitlines()[-1]) - len(code.splitlines()[-1].lstrip()) + 4)
        code += "..."
    return ast.parse(code)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_compiles_and_its_imports_exist(page: Path) -> None:
    for code in blocks(page, "python"):
        for node in ast.walk(parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trimtab."):
                pytest.importorskip("torch")
                module = _import(str(node.module))
                for name in node.names:
                    assert hasattr(module, name.name), f"{node.module} has no {name.name}"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "trimtab":
                known = {*trimtab.__all__, "data", "check", "integrations", "core", "journal"}
                assert node.attr in known, f"trimtab has no {node.attr}"


def _import(name: str) -> Any:
    """A module of trimtab; one that needs a trainer that is not installed skips the test."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trimtab"):
            raise
        pytest.skip(f"{name} needs {error.name}")
    except trimtab.TrimtabError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_arguments_of_public_functions_exist(page: Path) -> None:
    pytest.importorskip("torch")
    for code in blocks(page, "python"):
        for node in ast.walk(parse(code)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).removeprefix("trimtab.")
            if name in CALLABLES:
                known = inspect.signature(getattr(trimtab, name)).parameters
                used = {keyword.arg for keyword in node.keywords} - {None}
                assert used <= set(known), f"{name} has no {used - set(known)}"


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `trimtab ...` in the blocks and in the text of a page."""
    text = page.read_text(encoding="utf-8")
    shell = "\n".join(blocks(page, "", "bash", "sh", "console")).replace("\\\n", " ")
    lines = re.findall(r"(?m)^\s*(?:\$ )?(trimtab [a-z].*)$", shell)
    lines += re.findall(r"`(trimtab [a-z][^`]*)`", BLOCK.sub("", text).replace("\n", " "))
    for line in lines:
        line = re.split(r" -- | \.\.\.|  +| # ", line)[0]
        yield shlex.split(line.rstrip("."))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        command: Any = typer.main.get_command(app)
        words.pop(0)
        if words[0] == "help":
            words.pop(0)
        elif "." in words[0]:  # a log
            words.insert(0, "diagnose")
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        inner = getattr(command, "commands", {})
        is_run = not words or words[0].isupper() or "/" in words[0]  # what the group does by itself
        assert not inner or is_run, f"no command {words}"
        known = {name for item in command.params for name in item.opts + item.secondary_opts}
        options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options <= known | {"--help"}, f"{command.name} has no {options - known}"
