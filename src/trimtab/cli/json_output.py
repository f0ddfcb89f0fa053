"""`--json`: the option, and how every command prints it."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md).")]

JSON_VERSION = 1
"""Grows when a field is removed or changes its meaning; a new field does not change it."""


def print_json(command: str, values: Mapping[str, Any], *, is_line: bool = False) -> None:
    """Print the values of a command on standard output, with the name of their schema.

    NaN and the infinities are strings. `is_line` prints everything on one line, for a stream.
    """
    import json

    from trimtab.core.jsonable import to_jsonable

    shown = {"schema": f"trimtab {command} {JSON_VERSION}", **to_jsonable(values)}
    typer.echo(json.dumps(shown, indent=None if is_line else 1, allow_nan=False))
