"""`trimtab follow`, `answer` and `note`: a live run is watched, answered and annotated."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from trimtab.journal import RunDirectory

INTERVAL_SECONDS = 0.5


def follow(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="A run directory, live or not. With --web also several, or folders of runs.",
        ),
    ],
    web: Annotated[bool, typer.Option("--web", help="Show the runs in the browser.")] = False,
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where --web listens; port 0 is any free one. Other hosts than loopback need the "
            "token that is printed, or that of TRIMTAB_TOKEN.",
        ),
    ] = "127.0.0.1:8765",
    as_json: AsJson = False,
) -> None:
    """Watch a run's journal as it grows, until the run ends or you press Ctrl-C. Read-only.

    Incidents are those that the live judge has found so far. With --json every change is a line.
    --web serves one page for all runs and one for each, on this machine unless --address differs.

    Example: trimtab follow runs/ --web

    Exit code: 0 the run ended or you left, 2 usage error, 3 no readable journal or no such folder.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors

    if web and as_json:
        raise typer.BadParameter("--web shows pages; leave out --json")
    with reported_errors():
        if web:
            _serve(runs, address)
        elif len(runs) > 1:
            raise typer.BadParameter("the terminal shows one run; --web shows several")
        else:
            _draw(str(runs[0]), find_run(runs[0]), as_json=as_json)


def _draw(name: str, directory: "RunDirectory", *, as_json: bool) -> None:
    """Draw a run in the terminal, or print its changes as lines of JSON, until it ends."""
    import time
    from contextlib import nullcontext

    from rich.console import Console
    from rich.live import Live

    from trimtab.cli.progress import shows_progress
    from trimtab.journal import PIECE_RECORDS, Follower
    from trimtab.journal.approval import Proposal
    from trimtab.report.terminal import LiveView

    console = Console(highlight=False)
    view = LiveView(name)
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


def _serve(runs: list[Path], address: str) -> None:
    """Serve the pages of runs until the process is interrupted."""
    import os
    import signal

    from trimtab.core.errors import ConfigError, UnreadableLog
    from trimtab.diagnosis import diagnose
    from trimtab.report.server.http_server import RunServer
    from trimtab.report.server.hub import Hub

    for path in runs:
        if not path.is_dir():
            raise UnreadableLog(f"{path} is not a folder; give a run directory or a folder of runs")
    host, port = _parse_address(address)
    hub = Hub(runs)
    try:
        # By the environment alone: the arguments of a process are visible to every local user.
        server = RunServer(host, port, hub, diagnose, os.environ.get("TRIMTAB_TOKEN") or None)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error}; choose another with --address"
        ) from error
    hub.start()
    secret = f"?token={server.access.token}" if server.access.token else ""
    shown = f"[{host}]" if ":" in host else host
    typer.echo(
        f"{len(hub.feeds)} runs at http://{shown}:{server.access.port}/{secret} (Ctrl-C ends)"
    )
    try:
        # Also where a shell that started it in the background has SIGINT ignored.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        hub.close()
        server.server_close()


def _parse_address(text: str) -> tuple[str, int]:
    """Return host and port; the host of an IPv6 address stands in brackets."""
    from trimtab.core.errors import ConfigError

    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(
            f"--address takes HOST:PORT, got {text!r}; for example --address 127.0.0.1:8765"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


class YesNo(StrEnum):
    """What a person says to a proposal."""

    YES = "yes"
    NO = "no"


def answer(
    run: Annotated[Path, typer.Argument(help="The directory of the run that waits.")],
    given: Annotated[YesNo, typer.Argument(metavar="yes|no", help="Whether it may act.")],
) -> None:
    """Approve or decline the action that a run proposes.

    A run in `recover` whose weights are lost proposes a relaunch; `trimtab follow` shows it. After
    yes it ends with exit code 75 at its next step, after no training continues.

    Example: trimtab answer runs/x1 yes

    Exit code: 0 answered, 2 usage error, 3 nothing waits for an answer.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors
    from trimtab.core.text import printable
    from trimtab.journal import approval

    is_approved = given is YesNo.YES
    with reported_errors():
        proposal = approval.answer(find_run(run), is_approved=is_approved)
    verb = "approved" if is_approved else "declined"
    typer.echo(printable(f"{verb}: {proposal.action} (proposed at step {proposal.step})"))


def note(
    run: Annotated[Path, typer.Argument(help="A run directory, live or not.")],
    text: Annotated[str, typer.Argument(help="What happened, for example 'lowered LR by hand'.")],
    incident: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The incident that this is a follow-up of."),
    ] = None,
) -> None:
    """Add a note to a run, at the step where the run is now, with your user name.

    A note with --incident is listed in that incident's post-mortem, under "Follow-ups".

    Example: trimtab note runs/x1 "lowered the rate by hand"

    Exit code: 0 written, 2 usage error, 3 no readable journal.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors
    from trimtab.journal import add_note

    with reported_errors():
        step = add_note(find_run(run), text, incident)
    typer.echo(f"noted at step {step}")
