"""`trimtab report`: the post-mortems and the goodput of a run, written into its directory."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.settings import ConfigFile, RuleSet, Settings, Verbose


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    rules: RuleSet = None,
    config: ConfigFile = None,
    settings: Settings = None,
    price: Annotated[
        float | None, typer.Option(help="What an hour of the whole job costs, in $.", min=0.0)
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Judge a run's journal, compute its goodput, and write its post-mortems into the run.

    Earlier post-mortems of the run are replaced.

    Exit code: 0 report written, 2 usage error, 3 no readable journal or no usable loss.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import dataclasses

    from trimtab.cli import output
    from trimtab.cli.progress import progress_bar
    from trimtab.cli.settings import load_config
    from trimtab.diagnosis import diagnose

    with output.reported_errors():
        directory = output.find_run(run)
        with progress_bar() as progress:
            found = diagnose(
                run, rules=rules, config=load_config(config, settings), progress=progress
            )
    found = dataclasses.replace(found, price_per_hour=price)
    output.print_failures(found)
    output.print_view(found, questions=verbose)
    output.print_goodput(found)
    output.write_files(found, directory.incidents)
