"""`trimtab lab`: the reference trainer and its faults; one file per command."""

import typer

from trimtab.cli.lab.list_kinds import list_kinds
from trimtab.cli.lab.practice import practice
from trimtab.cli.lab.run import run
from trimtab.cli.lab.show import show
from trimtab.cli.lab.suite import suite
from trimtab.cli.lab.train import train

app = typer.Typer(
    name="lab",
    help="Train a small GPT on real text, cause real faults in it, and practise handling them.",
    no_args_is_help=True,
)
app.command()(train)
app.command("list")(list_kinds)
app.command()(run)
app.command()(show)
app.command()(suite)
app.command()(practice)
