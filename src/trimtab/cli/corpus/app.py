"""`trimtab corpus`: token statistics of a corpus; one file per command."""

import typer

from trimtab.cli.corpus.merge import merge
from trimtab.cli.corpus.scan import scan
from trimtab.cli.corpus.show import show

app = typer.Typer(
    name="corpus",
    help="Scan token files for what makes runs spike: rare tokens, repeats, duplicates, damage.",
    no_args_is_help=True,
)
app.command()(scan)
app.command()(merge)
app.command()(show)
