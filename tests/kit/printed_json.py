"""What a command prints with `--json`; of three commands, held against the published schema."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from trimtab.cli.main import app

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "trimtab-4.schema.json").read_text())


def validate(command: str, printed: Mapping[str, Any]) -> None:
    """Raise ValidationError, or AssertionError if it is the output of a different command."""
    assert printed["schema"] == f"trimtab {command} 4"
    if command in SCHEMA["$defs"]:
        # By its own definition: the errors of `oneOf` are those of all commands.
        schema = {**SCHEMA, "oneOf": [{"$ref": f"#/$defs/{command}"}]}
        Draft202012Validator(schema).validate(printed)


def call(
    command: str, *arguments: object, code: int = 0, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    words = [*command.split(), *map(str, arguments), "--json"]
    result = CliRunner(env=env).invoke(app, words)
    assert result.exit_code == code, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    validate(command, printed)
    return printed
