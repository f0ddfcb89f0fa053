"""`trimtab follow`: a live run in the terminal."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.options import AsJson, print_json

INTERVAL_SECONDS = 0.5


def follow(
    run: Annotated[Path, typer.Argument(help="A run directory, live or not.")],
    as_json: AsJson = False,
) -> None:
    """Watch a run's journal as it grows, until the run ends or you press Ctrl-C.

    Incidents are those that the live judge has found so far. With --json every change is a line.

    Exit code: 0 the run ended or you left, 2 usage error, 3 no readable journal.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import time
    from contextlib import nullcontext

    from rich.console import Console
    from rich.live import Live

    from trimtab.cli.output import find_run, reported_errors
    from trimtab.cli.progress import shows_progress
    from trimtab.journal import PIECE_RECORDS, Follower
    from trimtab.journal.approval import Proposal
    from trimtab.report.terminal import LiveView

    with reported_errors():
        directory = find_run(run)
    console = Console(highlight=False)
    view = LiveView(str(run))
    drawing = nullcontext() if as_json else Live(console=console, auto_refresh=False)
    shown: dict[str, object] = {}
    with Follower(directory) as follower, drawing as live:
        try:
            while True:
                view.update(follower.poll(PIECE_RECORDS))
                if follower.has_more:
                    continue
                view.ended = follower.ended
                view.proposal = Proposal.read(directory)
                if live is None:
                    if shown != (shown := view.to_dict()):
                        print_json("follow", shown, is_line=True)
                else:
                    # Outside a terminal, and in CI, only the last state is printed, at the end.
                    live.update(view.draw(console.width), refresh=shows_progress(console))
                if follower.ended is not None:
                    break
                time.sleep(INTERVAL_SECONDS)
        except KeyboardInterrupt:
            pass
