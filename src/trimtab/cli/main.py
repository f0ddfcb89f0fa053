"""The `trimtab` command."""

import sys
import traceback
from typing import Annotated, Any

import typer

from trimtab._version import __version__
from trimtab.cli.commands.check import check
from trimtab.cli.commands.checkpoints import checkpoints
from trimtab.cli.commands.compare import compare
from trimtab.cli.commands.corpus import corpus_app
from trimtab.cli.commands.demo import demo
from trimtab.cli.commands.diagnose import diagnose
from trimtab.cli.commands.lab import lab_app
from trimtab.cli.commands.observe import follow, note, observe, ship
from trimtab.cli.commands.run import run
from trimtab.cli.commands.selftest import selftest
from trimtab.cli.help import App, Command
from trimtab.cli.options import ExitCode


class CommandWithPlugins(Command):
    """A command whose help lists the installed plug-ins of other packages."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the plug-ins of this moment at its end."""
        self.epilog = describe_plugins()
        super().format_help(ctx, formatter)


def describe_plugins() -> str:
    """Return one paragraph per plug-in, nothing if there is none; no plug-in is loaded."""
    from trimtab.core.plugins import CHECKPOINTERS, DETECTORS, READERS, SINKS, list_plugins
    from trimtab.core.text import printable

    kinds = (
        *(("detector", DETECTORS), ("reader", READERS)),
        *(("checkpointer", CHECKPOINTERS), ("sink", SINKS)),
    )
    found = [f"{kind} {plugin}" for kind, group in kinds for plugin in list_plugins(group)]
    if not found:
        return ""
    return "\n\n".join(printable(line) for line in ("Installed plug-ins:", *found))


app = App(
    name="trimtab",
    help="Keeps PyTorch training runs healthy: finds loss spikes, NaNs and divergence, and why.",
    no_args_is_help=True,
    epilog="Example: trimtab diagnose train.log",
    pretty_exceptions_enable=False,  # a traceback that can be pasted into a bug report
)
LOOK, BEFORE, WHILE, TRY = "Look at a run", "Before a run", "While it runs", "Try it"
_PLUGGED: dict[str, Any] = {"cls": CommandWithPlugins}
for _panel, _function, _short, _options in (
    (LOOK, diagnose, "Say what happened in a run, why, and what to do.", _PLUGGED),
    (LOOK, compare, "Find from where on two runs differ.", {}),
    (BEFORE, check, "Check a config, or model, optimizer and loader.", {}),
    (WHILE, checkpoints, "List a run's checkpoints, and which of them are sound.", _PLUGGED),
    (WHILE, observe, "Judge and watch runs, and send them to trackers and alerts.", _PLUGGED),
    (WHILE, run, "Run a training command, and relaunch it when it asks to.", {}),
    (WHILE, note, "Add a note to a run, at its present step.", {}),
    (TRY, demo, "Break two runs of a small GPT, one of them guarded.", {}),
    (TRY, selftest, "Check on this machine what trimtab promises.", {}),
    (WHILE, follow, "The old name of `trimtab observe`.", {"hidden": True}),
    (WHILE, ship, "The old name of `trimtab observe --to`.", {"hidden": True, **_PLUGGED}),
):
    app.command(rich_help_panel=_panel, short_help=_short, **_options)(_function)
app.add_typer(
    corpus_app, rich_help_panel=BEFORE, short_help="Scan token files for what makes runs spike."
)
app.add_typer(
    lab_app, rich_help_panel=TRY, short_help="Cause real faults in a small GPT, and practise."
)


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
