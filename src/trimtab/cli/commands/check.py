"""`trimtab check`: what is wrong with a training config, before it costs anything."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.exit_codes import ExitCode
from trimtab.cli.json_output import AsJson, print_json
from trimtab.cli.settings import ConfigFile


def check(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="TRAINING_CONFIG",
            help="HF training arguments (JSON), torchtitan (TOML, JSON), a script with Megatron-LM "
            "or HF flags, or a TOML file with a training table.",
        ),
    ],
    off: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Switch a rule off by its id; may be repeated."),
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A fact that the training config does not hold, such as parameters=7e9; may be "
            "repeated.",
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a training config: what is wrong, why, and the line that fixes it.

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 no readable config.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from rich.console import Console

    from trimtab.checks import check_config
    from trimtab.checks.view import check_to_dict, check_view
    from trimtab.cli import output
    from trimtab.cli.settings import load_config, parse_settings

    with output.reported_errors():
        rules_off = (*load_config(config, None).check.off, *(off or ()))
        found = check_config(path, off=rules_off, known=parse_settings(known or ()))
    if as_json:
        print_json("check", check_to_dict(found))
    else:
        Console(highlight=False).print(check_view(found))
    raise typer.Exit(ExitCode.FINDINGS if found.objections else ExitCode.CLEAN)
