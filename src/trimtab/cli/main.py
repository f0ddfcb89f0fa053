"""The `trimtab` command."""

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trimtab._version import __version__
from trimtab.cli.commands.check import check
from trimtab.cli.commands.checkpoints import checkpoints
from trimtab.cli.commands.compare import compare
from trimtab.cli.commands.corpus import corpus_app
from trimtab.cli.commands.demo import demo
from trimtab.cli.commands.diagnose import diagnose
from trimtab.cli.commands.lab import lab_app
from trimtab.cli.commands.live import answer, follow, note
from trimtab.cli.commands.run import run
from trimtab.cli.commands.selftest import selftest
from trimtab.cli.commands.ship import ship
from trimtab.cli.options import ExitCode


class CommandWithPlugins(TyperCommand):
    """A command whose help lists the installed plug-ins of other packages."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the plug-ins of this moment at its end."""
        self.epilog = describe_plugins()
        super().format_help(ctx, formatter)


def describe_plugins() -> str:
    """Return one paragraph per plug-in; no plug-in is loaded."""
    from trimtab.core.plugins import CHECKPOINTERS, DETECTORS, READERS, SINKS, list_plugins
    from trimtab.core.text import printable

    kinds = (
        *(("detector", DETECTORS), ("reader", READERS)),
        *(("checkpointer", CHECKPOINTERS), ("sink", SINKS)),
    )
    found = [f"{kind} {plugin}" for kind, group in kinds for plugin in list_plugins(group)]
    if not found:
        return "Installed plug-ins: none."
    return "\n\n".join(printable(line) for line in ("Installed plug-ins:", *found))


app = typer.Typer(
    name="trimtab",
    help="Keeps PyTorch training runs healthy: finds loss spikes, NaNs and divergence, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback that can be pasted into a bug report
)
LOOK, BEFORE, WHILE, TRY = "Look at a run", "Before a run", "While it runs", "Try it"
app.command(cls=CommandWithPlugins, rich_help_panel=LOOK)(diagnose)
app.command(rich_help_panel=LOOK)(compare)
app.command(rich_help_panel=LOOK)(follow)
app.command(rich_help_panel=BEFORE)(check)
app.add_typer(corpus_app, rich_help_panel=BEFORE)
app.command(cls=CommandWithPlugins, rich_help_panel=WHILE)(checkpoints)
app.command(cls=CommandWithPlugins, rich_help_panel=WHILE)(ship)
app.command(rich_help_panel=WHILE)(run)
app.command(rich_help_panel=WHILE)(answer)
app.command(rich_help_panel=WHILE)(note)
app.command(rich_help_panel=TRY)(demo)
app.command(rich_help_panel=TRY)(selftest)
app.add_typer(lab_app, rich_help_panel=TRY)


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
