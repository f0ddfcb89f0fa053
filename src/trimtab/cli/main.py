"""The `trimtab` command."""

import sys
import traceback
from typing import Annotated

import typer

from trimtab._version import __version__
from trimtab.cli.commands.approve import approve, decline
from trimtab.cli.commands.check import check
from trimtab.cli.commands.checkpoints import checkpoints
from trimtab.cli.commands.compare import compare
from trimtab.cli.commands.demo import demo
from trimtab.cli.commands.diagnose import diagnose
from trimtab.cli.commands.follow import follow
from trimtab.cli.commands.note import note
from trimtab.cli.commands.probe import probe
from trimtab.cli.commands.report import report
from trimtab.cli.commands.run import run
from trimtab.cli.commands.selftest import selftest
from trimtab.cli.commands.serve import serve
from trimtab.cli.commands.ship import ship
from trimtab.cli.corpus.app import app as corpus
from trimtab.cli.exit_codes import ExitCode
from trimtab.cli.lab.app import app as lab
from trimtab.cli.plugins import CommandWithPlugins

app = typer.Typer(
    name="trimtab",
    help="Keeps PyTorch training runs healthy: finds loss spikes, NaNs and divergence, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback that can be pasted into a bug report
)
app.command(cls=CommandWithPlugins)(diagnose)
app.command()(check)
app.command()(compare)
app.command(cls=CommandWithPlugins)(report)
app.command()(follow)
app.command()(serve)
app.command(cls=CommandWithPlugins)(ship)
app.command()(note)
app.command()(run)
app.command()(approve)
app.command()(probe)
app.command()(decline)
app.command(cls=CommandWithPlugins)(checkpoints)
app.command()(selftest)
app.command()(demo)
app.add_typer(corpus)
app.add_typer(lab)


def main() -> None:
    """Run the command; an error that nobody expected has an exit code of its own."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        typer.echo(
            f"trimtab: this is a bug in trimtab {__version__}, not a finding about your run; "
            "please report it with the lines above",
            err=True,
        )
        sys.exit(ExitCode.BUG)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trimtab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Keeps PyTorch training runs healthy: finds loss spikes, NaNs and divergence, and why."""
