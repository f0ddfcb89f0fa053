"""`trimtab ship`: a run to trackers and alerts."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.options import AsJson, ConfigFile, Settings, load_config, print_json, sinks


def ship(
    run: Annotated[Path, typer.Argument(help="A run directory, live or not.")],
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            help="mlflow, wandb, tensorboard, trackio, prometheus, alerts, or a plug-in; may be "
            "given several times.",
            autocompletion=sinks,
        ),
    ],
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Send a run to trackers and alerts, from where the last call stopped.

    A live run is followed until it ends. Addresses and credentials come from the environment
    (docs/integrations). Ctrl-C stops; the next call sends the rest.

    Example: trimtab ship runs/x1 --to mlflow

    Exit code: 0 everything was sent, 1 something was not, 2 usage error, 3 no readable journal.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import os
    import signal

    from trimtab.cli.output import find_run, reported_errors
    from trimtab.core.text import printable
    from trimtab.integrations.shipper.log import ShipLog, standard_error
    from trimtab.integrations.shipper.shipper import Shipper, find_sink, shadowed

    with reported_errors():
        chosen = load_config(config, settings).ship
        directory = find_run(run)
        chosen_sinks = [find_sink(name) for name in dict.fromkeys(to)]
        shipper = Shipper(directory, chosen_sinks, chosen, ShipLog(directory, standard_error()))
    for plugin in shadowed():
        typer.echo(printable(f"trimtab: its own sink is used, not that of {plugin}"), err=True)
    signal.signal(signal.SIGINT, lambda *_: shipper.stop())
    signal.signal(signal.SIGTERM, lambda *_: shipper.stop())
    is_complete = shipper.run()
    if as_json:
        sent = [
            {
                "sink": shipment.sink.name,
                "records": shipment.cursor.num_records,
                "refused": shipment.cursor.num_refused,
                "link": shipment.cursor.memory.values.get("link"),
            }
            for shipment in shipper.shipments
        ]
        print_json("ship", {"run": str(run), "complete": is_complete, "sinks": sent})
    for shipment in () if as_json else shipper.shipments:
        cursor = shipment.cursor
        line = f"{shipment.sink.name}: {cursor.num_records:,} records sent"
        if cursor.num_refused:
            line += f", {cursor.num_refused:,} points refused (see the notes of the run)"
        if link := cursor.memory.values.get("link"):
            line += f"; {link}"
        typer.echo(printable(line))
    # A sink may hang in a library; its threads and exit hooks must not hold this process.
    os._exit(0 if is_complete else 1)
