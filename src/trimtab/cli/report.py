"""`trimtab report`: the written account of a run, in its own directory."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.core.config import Rules


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    rules: Annotated[Rules, typer.Option(help="The rules to judge by.")] = Rules.TRIMTAB,
    price: Annotated[
        float | None, typer.Option(help="What an hour of the whole job costs.", min=0.0)
    ] = None,
) -> None:
    """Judge a run's journal, write its post-mortems beside it, and reckon its goodput.

    Exit code: 0 report written, 2 usage error, 3 no readable journal.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli import output
    from trimtab.cli.examination import examine

    with output.told_errors():
        directory = output.find_run(run)
        account = examine(run, rules, price_per_hour=price)
    output.print_view(account)
    output.print_goodput(account)
    output.write_and_tell(account, directory.incidents)
