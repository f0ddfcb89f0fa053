"""`--json`: the option, and how every command prints it."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; `trimtab schema` describes it.")]


def print_json(command: str, values: Mapping[str, Any], *, is_line: bool = False) -> None:
    """Print the values of a command on standard output, with the name of their schema.

    NaN and the infinities are strings. `is_line` puts everything on one line, for a stream.
    """
    import json

    from trimtab.cli.schema.version import schema_name
    from trimtab.core.jsonable import to_jsonable

    shown = {"schema": schema_name(command), **to_jsonable(values)}
    typer.echo(json.dumps(shown, indent=None if is_line else 1, allow_nan=False))
