"""`trimtab answer`: approve or decline what a run proposes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Answer(StrEnum):
    """What a person says to a proposal."""

    YES = "yes"
    NO = "no"


def answer(
    run: Annotated[Path, typer.Argument(help="The directory of the run that waits.")],
    given: Annotated[Answer, typer.Argument(metavar="yes|no", help="Whether it may act.")],
) -> None:
    """Approve or decline the action that a run proposes.

    A run proposes instead of acting with `ladder.approve = "ask"`; `trimtab follow` shows it.
    After yes it acts at its next step, after no training continues without the action.

    Exit code: 0 answered, 2 usage error, 3 nothing waits for an answer.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors
    from trimtab.journal import approval
    from trimtab.report.escaping import printable

    is_approved = given is Answer.YES
    with reported_errors():
        proposal = approval.answer(find_run(run), is_approved=is_approved)
    verb = "approved" if is_approved else "declined"
    typer.echo(printable(f"{verb}: {proposal.action} (proposed at step {proposal.step})"))
