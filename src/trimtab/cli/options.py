"""What commands share: exit codes, options, the settings that they give, completion.

Nothing heavy is imported here: every `--help` imports it. Exit codes: docs/command-line.md.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.core.config import RuleSetName

if TYPE_CHECKING:
    from trimtab.core.config import Config
    from trimtab.core.run import RunFacts


class ExitCode(IntEnum):
    """Exit codes of every subcommand."""

    CLEAN = 0
    """Nothing found, or done."""
    FINDINGS = 1
    """Something was found, or not everything could be done."""
    USAGE = 2
    """Usage error: an option, setting or argument that cannot be right."""
    UNREADABLE = 3
    """The input cannot be used: not readable, no usable loss, or an extra is not installed."""
    ACT = 4
    """Somebody has to act, by `trimtab diagnose --brief`."""
    BUG = 70
    """A bug in trimtab, with a traceback (EX_SOFTWARE of sysexits.h)."""


# The lab has them as a table too, but importing it imports torch, and `--help` must not wait.
class Size(StrEnum):
    """Named sizes of the lab's models."""

    S015M = "0.15M"
    S1M = "1M"
    S3M = "3M"
    S10M = "10M"
    X1 = "x1"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (docs/command-line.md).")]

JSON_VERSION = 4
"""Grows when a field is removed or changes its meaning; a new field does not change it."""


def print_json(command: str, values: Mapping[str, Any], *, is_line: bool = False) -> None:
    """Print the values of a command on standard output; `is_line` on one line, for a stream."""
    typer.echo(json_text(command, values, is_line=is_line))


def json_text(command: str, values: Mapping[str, Any], *, is_line: bool = False) -> str:
    """Return the values of a command with the name of their schema; NaN is a string."""

    from trimtab.core.jsonable import to_jsonable

    shown = {"schema": f"trimtab {command} {JSON_VERSION}", **to_jsonable(values)}
    return json.dumps(shown, indent=None if is_line else 1, allow_nan=False)


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in TOML, or a table tool.trimtab."),
]

_FACTS = ("dtype", "seed", "world")
_DTYPES = ("fp32", "bf16", "fp16", "fp8")

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting or a fact: dtype=bf16."),
]

RuleSet = Annotated[
    RuleSetName | None, typer.Option("--rules", help="The rules to judge by.", show_default=False)
]


def load_config(file: Path | None, settings: Iterable[str] | None) -> "Config":
    """Return the settings of the file, changed by those of the command line; raises ConfigError."""
    from trimtab.core.config import Config

    config = Config.from_toml(file) if file else Config()
    return config.override(parse_settings(settings or ()))


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Return settings given as name=value, each value as TOML reads it; raises ConfigError."""
    from trimtab.core.errors import ConfigError

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = (part.strip() for part in pair.partition("="))
        if not sign or not name:
            raise ConfigError(
                f"--set takes NAME=VALUE, got {pair!r}; for example --set threshold_scale=2"
            )
        try:
            settings[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:  # a word without quotes, as on every command line
            settings[name] = value
    return settings


def split_facts(pairs: Iterable[str] | None) -> tuple["RunFacts", list[str]]:
    """Return the facts among the settings, and the other settings.

    Raises ConfigError for a fact that cannot be right.
    """
    from trimtab.core.errors import ConfigError
    from trimtab.core.run import SETTINGS, RunFacts

    given = list(pairs or ())
    names = {*_FACTS, *SETTINGS}
    facts = [pair for pair in given if pair.partition("=")[0].strip() in names]
    found = RunFacts.from_manifest(parse_settings(facts))
    if found.dtype not in (None, *_DTYPES):
        raise ConfigError(f"unknown dtype {found.dtype!r}; choose from {', '.join(_DTYPES)}")
    return found, [pair for pair in given if pair not in facts]


def formats(incomplete: str) -> list[str]:
    from trimtab.readers.reading import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def sinks(incomplete: str) -> list[str]:
    from trimtab.core.plugins import SINKS, list_plugins
    from trimtab.observe.shipping.shipper import OWN_SINKS

    names = [*OWN_SINKS, *(plugin.name for plugin in list_plugins(SINKS))]
    return [name for name in names if name.startswith(incomplete)]
