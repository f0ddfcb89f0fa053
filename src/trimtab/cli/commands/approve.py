"""`trimtab approve` and `trimtab decline`: answer what a run proposes."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.options import AsJson, print_json

RunArgument = Annotated[Path, typer.Argument(help="The directory of the run that waits.")]


def approve(run: RunArgument, as_json: AsJson = False) -> None:
    """Approve the action that a run proposes; it acts at its next step.

    A run proposes instead of acting with `ladder.approve = "ask"`; `trimtab follow` shows it.

    Exit code: 0 answered, 2 usage error, 3 nothing waits for an answer.
    """
    _answer(run, is_approved=True, as_json=as_json)


def decline(run: RunArgument, as_json: AsJson = False) -> None:
    """Decline the action that a run proposes; training continues without it.

    Exit code: 0 answered, 2 usage error, 3 nothing waits for an answer.
    """
    _answer(run, is_approved=False, as_json=as_json)


def _answer(path: Path, *, is_approved: bool, as_json: bool) -> None:
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors
    from trimtab.journal.approval import answer
    from trimtab.report.escaping import printable

    with reported_errors():
        proposal = answer(find_run(path), is_approved=is_approved)
    if as_json:
        shown = {"run": str(path), "approved": is_approved, "proposal": proposal}
        print_json("approve" if is_approved else "decline", shown)
        return
    verb = "approved" if is_approved else "declined"
    typer.echo(printable(f"{verb}: {proposal.action} (proposed at step {proposal.step})"))
