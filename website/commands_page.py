"""The reference of commands, from the parameters that the command line itself uses."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer.main

from trimtab.cli.main import app


def commands_text() -> str:
    """Each command with its arguments and options."""
    return "\n\n".join(_command_text("trimtab", typer.main.get_command(app)))


def _command_text(name: str, command: Any) -> Iterator[str]:
    if command.hidden:  # an old name
        return
    for part, inner in getattr(command, "commands", {}).items():
        yield from _command_text(f"{name} {part}", inner)
    if hasattr(command, "commands"):
        return
    yield f"### {name}"
    yield "\n".join(line.strip() for line in (command.help or "").splitlines())
    rows = [_row(item) for item in command.params if not item.hidden]
    if rows:
        yield "\n".join(["| option | meaning | default |", "| --- | --- | --- |", *rows])


def _row(item: Any) -> str:
    """One argument or option; typer has no public types for them."""
    is_option = item.opts[0].startswith("-")
    names = item.opts + item.secondary_opts if is_option else [item.name.upper()]
    text = (item.help or "").replace("|", "\\|")
    kind = getattr(getattr(item, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        text += f" One of {', '.join(f'`{choice.value}`' for choice in kind)}."
    return f"| {', '.join(f'`{name}`' for name in names)} | {text} | {_default(item)} |"


def _default(item: Any) -> str:
    if item.required:
        return "required"
    if isinstance(item.show_default, str):
        return item.show_default
    value = item.default.value if isinstance(item.default, Enum) else item.default
    return f"`{value}`" if isinstance(value, str | int | float) and value is not False else ""
