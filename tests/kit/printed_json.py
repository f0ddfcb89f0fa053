"""What a command prints with `--json`, held against the published schema."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.cli.schema.published import definition_name, published_schema
from trimtab.cli.schema.version import schema_name


@cache
def _schema() -> dict[str, Any]:
    return published_schema()


def validate(command: str, printed: Mapping[str, Any]) -> None:
    """Raises ValidationError, or AssertionError if it is the output of a different command."""
    assert printed["schema"] == schema_name(command)
    # By its own definition first: the errors of `oneOf` are those of all commands.
    schema = {**_schema(), "oneOf": [{"$ref": f"#/$defs/{definition_name(command)}"}]}
    Draft202012Validator(schema).validate(printed)
    Draft202012Validator(_schema()).validate(printed)


def call(
    command: str, *arguments: object, code: int = 0, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Call a command with `--json`; its valid output."""
    words = [*command.split(), *map(str, arguments), "--json"]
    result = CliRunner(env=env).invoke(app, words)
    assert result.exit_code == code, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    validate(command, printed)
    return printed
