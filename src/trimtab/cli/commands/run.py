"""`trimtab run`: launch a training command, and launch it again when the run asks for it."""

from typing import Annotated

import typer


def run(
    command: Annotated[
        list[str], typer.Argument(help="The command, after `--`: trimtab run -- torchrun train.py")
    ],
    max_relaunches: Annotated[
        int, typer.Option(min=0, help="Give up after this many relaunches in total.")
    ] = 100,
    crashes: Annotated[
        bool, typer.Option("--crashes", help="Relaunch after a crash or a kill too.")
    ] = False,
    delay: Annotated[float, typer.Option(min=0.0, help="Seconds before a relaunch.")] = 5.0,
) -> None:
    """Run a training command; launch it again when the run asks for it.

    A guarded run asks with exit code 75, also from inside torchrun, which hides exit codes. The
    command must resume by itself from its newest checkpoint. Signals are passed on to it. Three
    launches in a row without a new step end it too.

    Example: trimtab run -- torchrun train.py

    Exit code: that of the command; 75 or 76 if the run ended itself and is not launched again.
    """
    import os
    import shutil

    from trimtab.cli.options import ExitCode
    from trimtab.cli.supervisor import RelaunchBudget, Supervisor
    from trimtab.core.text import printable

    def report(sentence: str) -> None:
        typer.echo(printable(f"trimtab: {sentence}"), err=True)

    if shutil.which(command[0]) is None:
        report(f"the command {command[0]!r} was not found; check its name and PATH")
        raise typer.Exit(ExitCode.USAGE)
    budget = RelaunchBudget(total=max_relaunches, include_crashes=crashes, delay_seconds=delay)
    raise typer.Exit(Supervisor(command, budget, report, dict(os.environ)).run())
