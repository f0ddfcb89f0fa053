"""`trimtab observe` and `note`: runs are judged, watched, sent on and annotated from outside."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.options import AsJson, ExitCode, Settings, load_config, print_json, sinks

if TYPE_CHECKING:
    from trimtab.core.config import ShipConfig
    from trimtab.observe.server.run_feed import RunFeed
    from trimtab.observe.shipping.shipper import RunShippers

INTERVAL_SECONDS = 0.25


def observe(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories, or folders of runs.")
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
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            help="mlflow, wandb, tensorboard, prometheus, alerts, or a plug-in; may be given "
            "several times.",
            autocompletion=sinks,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Judge to the end of the journal, write, and end.")
    ] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Judge runs as they train, show them, and send them to trackers and alerts.

    One run is drawn in the terminal. Of several, or without a terminal, each change is a line; new
    runs in a folder appear. What is found is written into the run, unless another observer of the
    run does so: the training process starts one by itself. Ctrl-C leaves; nothing is lost.

    Example: trimtab observe runs/x1 --to mlflow

    Exit code: 0 the runs ended or you left, 1 something was not sent, 2 usage error, 3 no readable
    journal or no such folder.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from rich.console import Console

    from trimtab.cli.progress import shows_progress

    if web and (as_json or once):
        raise typer.BadParameter("--web shows pages; leave out --json and --once")
    if once and to:
        raise typer.BadParameter("--once judges and sends nothing; leave it out to send")
    config = load_config(None, settings).ship
    if once:
        _judge_once(runs, as_json=as_json)
        return
    shippers = _shippers(to or (), config)
    if web:
        _serve(runs, address, shippers)
    elif len(runs) == 1 and not as_json and shows_progress(Console()) and _is_run(runs[0]):
        _draw(runs[0], shippers)
    else:
        _print_changes(runs, shippers, as_json=as_json)
    _leave(shippers)


_MAIL = "apprise:mailtos://USER:PASSWORD@HOST?from=a@x.org&to=b@x.org"
_ADDRESSES = {
    "discord": "apprise:https://discord.com/api/webhooks/ID/TOKEN",
    **dict.fromkeys(("email", "e-mail", "mail", "smtp"), _MAIL),
    "ntfy": "apprise:ntfys://SERVER/TOPIC",
    "pagerduty": "apprise:pagerduty://INTEGRATION_KEY@API_KEY",
    "slack": "apprise:https://hooks.slack.com/services/A/B/C",
    "teams": "apprise:workflows://HOST:443/WORKFLOW/SIGNATURE",
    "webhook": "webhook+https://HOST/PATH",
}
"""Where alerts go, for names that are not those of a sink (docs/trackers.md)."""


def _shippers(names: Sequence[str], config: "ShipConfig") -> "RunShippers":
    """Return what sends runs to sinks; raises ConfigError for a sink that there is not."""
    import signal

    from trimtab.core.errors import ConfigError
    from trimtab.core.text import printable
    from trimtab.observe.shipping.shipper import RunShippers, shadowed

    def warn(line: str) -> None:
        typer.echo(printable(line), err=True)

    try:
        shippers = RunShippers(names, config, warn)
    except ConfigError as error:
        address = next((_ADDRESSES[name] for name in names if name in _ADDRESSES), None)
        if address is None:
            raise
        raise ConfigError(
            f"{error}\n  alerts reach people: "
            f"TRIMTAB_ALERT_URLS='{address}' trimtab observe RUN --to alerts"
        ) from error
    for plugin in shadowed() if names else ():
        warn(f"trimtab: its own sink is used, not that of {plugin}")
    # Also where a shell that started it in the background has SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    return shippers


def _leave(shippers: "RunShippers") -> None:
    """Wait for what is being sent, say what was, and end the process if anything was."""
    import os
    import sys

    from trimtab.core.text import printable

    if not shippers.shippers:
        return
    is_complete = shippers.close()
    for shipment in (one for shipper in shippers.shippers for one in shipper.shipments):
        cursor = shipment.cursor
        line = f"{shipment.sink.name}: {cursor.num_records:,} records sent"
        if cursor.num_refused:
            line += f", {cursor.num_refused:,} points refused (see the notes of the run)"
        if link := cursor.memory.values.get("link"):
            line += f"; {link}"
        typer.echo(printable(line))
    sys.stdout.flush()
    # A sink may hang in a library; its threads and exit hooks must not hold this process.
    os._exit(ExitCode.CLEAN if is_complete else ExitCode.FINDINGS)


def _is_run(path: Path) -> bool:
    from trimtab.journal import RunDirectory

    return RunDirectory.find(path) is not None


def _draw(path: Path, shippers: "RunShippers") -> None:
    """Draw a run in the terminal until it ends."""
    import time

    from rich.console import Console
    from rich.live import Live

    from trimtab.cli.output import find_run
    from trimtab.core.sink import RunStatus
    from trimtab.observe.observed_run import ObservedRun
    from trimtab.observe.run_stream import RunStream
    from trimtab.report.terminal import LiveView

    run = find_run(path)
    console = Console(highlight=False)
    observed, stream = ObservedRun(run), RunStream(run)
    view = LiveView(str(path), stream.totals)
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                observed.poll()
                shippers.update(run, observed.standing)
                view.update(stream.poll())
                if stream.has_more:
                    continue
                view.ended = stream.ended
                standing = stream.standing
                view.died = standing.how if standing.status is RunStatus.DIED else ""
                live.update(view.draw(console.width), refresh=True)
                if observed.standing.status.is_over and not shippers.is_alive:
                    break
                time.sleep(INTERVAL_SECONDS)
        except KeyboardInterrupt:
            shippers.stop()
    observed.close()
    stream.close()


def _print_changes(runs: list[Path], shippers: "RunShippers", *, as_json: bool) -> None:
    """Print a line for each change of any run, until all of them are over."""
    import time

    from trimtab.observe.server.hub import Hub

    _check_folders(runs)
    known: set[Path] = set()

    def on_change(feed: "RunFeed") -> None:
        shippers.update(feed.directory, feed.observed.standing)
        _print_news(feed, is_first=feed.directory.root not in known, as_json=as_json)
        known.add(feed.directory.root)

    hub = Hub(runs, on_change=on_change)
    may_grow = not all(map(_is_run, runs))
    try:
        while True:
            hub.poll()
            if not may_grow and hub.is_over and not shippers.is_alive:
                break
            time.sleep(INTERVAL_SECONDS)
    except KeyboardInterrupt:
        shippers.stop()
    finally:
        hub.close()


def _print_news(feed: "RunFeed", *, is_first: bool, as_json: bool) -> None:
    """Print how a run stands when it is found, and then what is new about it."""
    from trimtab.core.text import printable

    for line in [feed.state_line()] if is_first else feed.news_lines():
        if as_json:
            print_json("observe", {"run": feed.name, **line}, is_line=True)
        else:
            where = "before the first step" if line["step"] is None else f"step {line['step']}"
            typer.echo(printable(f"{feed.name}: {where}: {line['text']}"))


def _judge_once(runs: list[Path], *, as_json: bool) -> None:
    """Judge runs to the end of their journals, write everything, and print how they stand."""
    from trimtab.core.errors import JournalError
    from trimtab.journal import RunDirectory
    from trimtab.observe.observed_run import observe_once
    from trimtab.observe.server.hub import find_run_folders
    from trimtab.observe.server.run_feed import RunFeed

    _check_folders(runs)
    found = [
        (name, run) for name, path in find_run_folders(runs) if (run := RunDirectory.find(path))
    ]
    if not found:
        raise JournalError(f"no run is at or below {runs[0]}; check the path")
    for name, run in found:
        observe_once(run)
        feed = RunFeed(run, name)
        feed.poll()
        _print_news(feed, is_first=True, as_json=as_json)
        feed.close()


def _check_folders(runs: list[Path]) -> None:
    from trimtab.core.errors import UnreadableLog

    for path in runs:
        if path.is_file():
            raise UnreadableLog(f"{path} is a file; for a log use `trimtab diagnose {path}`")
        if not path.is_dir():
            raise UnreadableLog(f"{path} is not a folder; give a run directory or a folder of runs")


def _serve(runs: list[Path], address: str, shippers: "RunShippers") -> None:
    """Serve the pages of runs until the process is interrupted."""
    import os

    from trimtab.core.errors import ConfigError
    from trimtab.diagnosis import diagnose
    from trimtab.observe.server.http_server import RunServer
    from trimtab.observe.server.hub import Hub

    _check_folders(runs)
    host, port = _parse_address(address)
    hub = Hub(runs, on_change=lambda feed: shippers.update(feed.directory, feed.observed.standing))
    try:
        # By the environment alone: the arguments of a process are visible to every local user.
        server = RunServer(host, port, hub, diagnose, os.environ.get("TRIMTAB_TOKEN") or None)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error}; choose another with --address"
        ) from error
    try:
        hub.start()
        secret = f"?token={server.access.token}" if server.access.token else ""
        shown = f"[{host}]" if ":" in host else host
        typer.echo(
            f"{len(hub.feeds)} runs at http://{shown}:{server.access.port}/{secret} (Ctrl-C ends)"
        )
        server.serve_forever()
    except KeyboardInterrupt:
        shippers.stop()
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


def note(
    run: Annotated[Path, typer.Argument(help="A run directory, live or not.")],
    text: Annotated[str, typer.Argument(help="What happened, for example 'lowered LR by hand'.")],
    incident: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The incident that this is a follow-up of."),
    ] = None,
    dismiss: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The incident that needs nothing, as TEXT says."),
    ] = None,
) -> None:
    """Add a note to a run, at the step where the run is now, with your user name.

    A note with --incident is listed in that incident's post-mortem, under "Follow-ups". An incident
    with --dismiss is shown as dismissed by you everywhere, and no longer counts as open.

    Example: trimtab note runs/x1 "lowered the rate by hand"

    Exit code: 0 written, 2 usage error, 3 no readable journal.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run
    from trimtab.core.errors import ConfigError
    from trimtab.diagnosis import diagnose
    from trimtab.journal import add_note

    directory = find_run(run)
    if not text.strip():
        raise ConfigError("the note is empty; say what happened, such as 'lowered LR by hand'")
    if named := [number for number in (incident, dismiss) if number is not None]:
        known = [one.incident.number for one in diagnose(directory.root).incidents]
        if missing := [number for number in named if number not in known]:
            numbers = ", ".join(map(str, sorted(known))) or "none"
            raise ConfigError(f"the run has no incident {missing[0]}; it has: {numbers}")
    step = add_note(directory, text, incident, dismiss=dismiss)
    typer.echo(f"noted at step {step}")
