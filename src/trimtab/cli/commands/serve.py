"""`trimtab serve`: pages of live runs in the browser."""

import signal
from pathlib import Path
from typing import Annotated

import typer


def serve(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of runs.")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.", min=0, max=65535)] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TRIMTAB_TOKEN",
            help="What a browser must give.",
            show_default="none on loopback, else a random one",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps that each run will make, for the time left.", min=1)
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Show runs in the browser as they train: one page for all, one for each. Read-only.

    Listens on this machine only, unless --host names another address.

    Exit code: 0 you pressed Ctrl-C, 2 usage error, 3 no such folder.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import reported_errors
    from trimtab.core.errors import ConfigError, UnreadableLog
    from trimtab.diagnosis import diagnose
    from trimtab.report.server.http_server import RunServer
    from trimtab.report.server.hub import Hub

    with reported_errors():
        for path in runs:
            if not path.is_dir():
                raise UnreadableLog(
                    f"{path} is not a folder; give a run directory or a folder of runs"
                )
        hub = Hub(runs, total_steps=steps)
        try:
            server = RunServer(host, port, hub, diagnose, token)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {error}; choose others with --host, --port"
            ) from error
    hub.start()
    secret = f"?token={server.access.token}" if server.access.token else ""
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{server.access.port}/{secret}"
    typer.echo(f"{len(hub.feeds)} runs at {address} (Ctrl-C ends)")
    if open_page:
        typer.launch(address)
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
