"""The version of what `--json` prints, and its name in every output."""

SCHEMA_VERSION = 1
"""Grows when a field is removed or changes its meaning; a new field does not change it."""


def schema_name(command: str) -> str:
    """The value of `schema` in the output of a command."""
    return f"trimtab {command} {SCHEMA_VERSION}"
