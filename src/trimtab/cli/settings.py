"""The options that every command that judges has: `--config`, `--set`, `--rules`, `--verbose`."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.core.config import Rules

if TYPE_CHECKING:
    from trimtab.core.config import Config

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Settings in TOML: the tool.trimtab table of the file, or all of it."
    ),
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change one setting, for example threshold_scale=2; may be repeated.",
    ),
]

RuleSet = Annotated[
    Rules | None,
    typer.Option(
        "--rules", help="The rules to judge by.", show_default="trimtab, or as --config says"
    ),
]

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the questions that led to each cause.")
]


def load_config(file: Path | None, settings: Iterable[str] | None) -> "Config":
    """The settings of the file, changed by those of the command line; raises ConfigError."""
    from trimtab.core.config import Config

    config = Config.from_toml(file) if file else Config()
    return config.override(parse_settings(settings or ()))


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Settings given as name=value, each value as TOML reads it; raises ConfigError."""
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
