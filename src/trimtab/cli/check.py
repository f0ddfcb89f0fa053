"""`trimtab check`: what is wrong with a training config, before it costs anything."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.exit_codes import ExitCode


def check(
    config: Annotated[
        Path,
        typer.Argument(
            help="HF training arguments (JSON), torchtitan (TOML, JSON), a script with Megatron-LM "
            "or HF flags, or a [training] table in TOML."
        ),
    ],
    off: Annotated[
        list[str] | None, typer.Option(help="Switch a rule off by its id; may be repeated.")
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Tell what the config does not say, such as parameters=7e9; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a training config: what is wrong, why, and the line that mends it.

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 no readable config.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import json

    from rich.console import Console

    from trimtab.check import check_config
    from trimtab.cli import output
    from trimtab.report.check_view import check_to_dict, check_view

    with output.reported_errors():
        found = check_config(config, off=off or (), known=_known(known or []))
    if as_json:
        typer.echo(json.dumps(check_to_dict(found), indent=2))
    else:
        Console(highlight=False).print(check_view(found))
    raise typer.Exit(ExitCode.FINDINGS if found.objections else ExitCode.CLEAN)


def _known(pairs: list[str]) -> dict[str, object]:
    """The settings told on the command line, each value as TOML would read it."""
    import tomllib

    from trimtab.core.errors import ConfigError

    settings: dict[str, object] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(f"--set takes name=value, got {pair!r}")
        try:
            settings[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:  # a word without quotes, as on every command line
            settings[name.strip()] = value.strip()
    return settings
