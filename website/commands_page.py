"""The reference of commands, from the parameters that the command line itself uses."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer.main

from trimtab.cli.main import app


def commands_text() -> str:
    """Each command with what it does, its exit codes and its options, a line each."""
    return "\n".join(_lines("trimtab", typer.main.get_command(app)))


def _lines(name: str, command: Any) -> Iterator[str]:
    if command.hidden:  # an old name
        return
    for part, inner in getattr(command, "commands", {}).items():
        yield from _lines(f"{name} {part}", inner)
    if hasattr(command, "commands"):
        return
    paragraphs = [" ".join(one.split()) for one in (command.help or "").split("\n\n")]
    codes = [one for one in paragraphs if one.startswith("Exit code: ")]
    yield f"- **`{name}`**: {' '.join([paragraphs[0], *codes])}"
    for item in command.params:
        if not item.hidden and item.name != "as_json":
            yield f"    {_line(item)}"


def _line(item: Any) -> str:
    """One argument or option; typer has no public types for them."""
    is_option = item.opts[0].startswith("-")
    names = item.opts + item.secondary_opts if is_option else [item.name.upper()]
    text = " ".join((item.help or "").split())
    kind = getattr(getattr(item, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        text += f" One of {', '.join(f'`{choice.value}`' for choice in kind)}."
    return f"- {', '.join(f'`{name}`' for name in names)}: {text}{_default(item)}"


def _default(item: Any) -> str:
    if item.required or re.search(r"[Dd]efault", item.help or ""):
        return ""
    if isinstance(item.show_default, str):
        return f" Default: {item.show_default}."
    value = item.default.value if isinstance(item.default, Enum) else item.default
    is_shown = isinstance(value, str | int | float) and not isinstance(value, bool)
    return f" Default: `{value}`." if is_shown else ""
