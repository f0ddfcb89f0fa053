"""`trimtab approve` and `trimtab decline`: answer what a run proposes."""

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="The directory of the run that waits.")]


def approve(run: RunArgument) -> None:
    """Approve the action that a run proposes; it acts at its next step.

    A run proposes instead of acting with `ladder.approve = "ask"`; `trimtab follow` shows it.

    Exit code: 0 answered, 2 usage error, 3 nothing waits for an answer.
    """
    _answer(run, is_approved=True)


def decline(run: RunArgument) -> None:
    """Decline the action that a run proposes; training continues without it.

    Exit code: 0 answered, 2 usage error, 3 nothing waits for an answer.
    """
    _answer(run, is_approved=False)


def _answer(path: Path, *, is_approved: bool) -> None:
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors
    from trimtab.journal.approval import answer
    from trimtab.report.escaping import printable

    with reported_errors():
        proposal = answer(find_run(path), is_approved=is_approved)
    verb = "approved" if is_approved else "declined"
    typer.echo(printable(f"{verb}: {proposal.action} (proposed at step {proposal.step})"))
