"""`trimtab follow`: a live run in the terminal."""

from pathlib import Path
from typing import Annotated

import typer


def follow(
    run: Annotated[Path, typer.Argument(help="A run directory, live or not.")],
) -> None:
    """Watch a run's journal as it grows, until the run ends or you press Ctrl-C.

    Incidents are those that the live judge has found so far.

    Exit code: 0 the run ended or you left, 2 usage error, 3 no readable journal.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import time

    from rich.console import Console
    from rich.live import Live

    from trimtab.cli.output import find_run, reported_errors
    from trimtab.journal import PIECE_RECORDS, Follower
    from trimtab.journal.approval import Proposal
    from trimtab.report.live_view import LiveView

    with reported_errors():
        directory = find_run(run)
    console = Console(highlight=False)
    view = LiveView(str(run))
    with Follower(directory) as follower, Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                view.update(follower.poll(PIECE_RECORDS))
                if follower.has_more:
                    continue
                view.ended = follower.ended
                view.proposal = Proposal.read(directory)
                live.update(view.draw(console.width), refresh=True)
                if follower.ended is not None:
                    break
                time.sleep(0.5)
        except KeyboardInterrupt:
            pass
