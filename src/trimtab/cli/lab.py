"""`trimtab lab`: the reference trainer, and what it is broken by; one file per command."""

import typer

from trimtab.cli.lab_list import list_kinds
from trimtab.cli.lab_practice import practice
from trimtab.cli.lab_run import run
from trimtab.cli.lab_show import show
from trimtab.cli.lab_suite import suite
from trimtab.cli.lab_train import train

app = typer.Typer(
    name="lab",
    help="A small GPT on real text, trained as large ones are, and broken as they break.",
    no_args_is_help=True,
)
app.command()(train)
app.command("list")(list_kinds)
app.command()(run)
app.command()(show)
app.command()(suite)
app.command()(practice)
