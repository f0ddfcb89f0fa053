"""`trimtab note`: a note of yours in a run's journal."""

from pathlib import Path
from typing import Annotated

import typer


def note(
    run: Annotated[Path, typer.Argument(help="A run directory, live or not.")],
    text: Annotated[str, typer.Argument(help="What happened, for example 'lowered LR by hand'.")],
) -> None:
    """Add a note to a run, at the step where the run is now.

    Exit code: 0 written, 2 usage error, 3 no readable journal.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors
    from trimtab.journal import add_note

    with reported_errors():
        step = add_note(find_run(run), text)
    typer.echo(f"noted at step {step}")
