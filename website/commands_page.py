"""The reference of commands, from the parameters that the command line itself uses."""

from collections.abc import Iterator
from typing import Any

import typer.main

from trimtab.cli.main import app


def commands_text() -> str:
    """Each command with the names of its options, what it does and its exit codes, a line each."""
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
    shown = [item for item in command.params if not item.hidden and item.name != "as_json"]
    names = f" ({', '.join(map(_names, shown))})" if shown else ""
    yield f"- **`{name}`**{names}: {' '.join([paragraphs[0], *codes])}"


def _names(item: Any) -> str:
    """The names of an argument or option; typer has no public types for them."""
    is_option = item.opts[0].startswith("-")
    names = item.opts + item.secondary_opts if is_option else [item.name.upper()]
    return "/".join(f"`{name}`" for name in names)
