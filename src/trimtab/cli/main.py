"""The `trimtab` command."""

import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab._version import __version__
from trimtab.cli.commands.check import check
from trimtab.cli.commands.checkpoints import CheckpointCommands, checkpoints, same
from trimtab.cli.commands.compare import compare
from trimtab.cli.commands.corpus import corpus_app
from trimtab.cli.commands.demo import demo
from trimtab.cli.commands.diagnose import diagnose
from trimtab.cli.commands.lab import lab_app
from trimtab.cli.commands.mcp import mcp
from trimtab.cli.commands.observe import note, observe
from trimtab.cli.commands.rollback import rollback
from trimtab.cli.commands.run import run
from trimtab.cli.commands.selftest import selftest
from trimtab.cli.help import App, Command, Group
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


_UNASKED = "a run asks no questions any more; the setting ladder.unattended lets it end itself"
_INSTEAD = {
    **dict.fromkeys(("analyse", "analyze", "explain"), "use trimtab diagnose LOG"),
    **dict.fromkeys(("dashboard", "serve", "web"), "use trimtab observe RUNS --web"),
    **dict.fromkeys(("answer", "approve", "decline"), _UNASKED),
    "monitor": "use trimtab observe RUN",
    "preflight": "use trimtab check MODULE:FUNCTION",
    "probe": "a run that is watched with batch_loss= makes its experiments by itself",
    "report": "use trimtab diagnose RUN --write, or --html FILE for one page",
    "schema": "it is the file docs/trimtab-4.schema.json",
    "watch": "use trimtab observe RUN, or trimtab.watch in a script",
}
"""What to type for a name that trimtab had before 0.4, or that other tools have."""

_OLD_NAMES = {"follow": "trimtab observe RUN", "ship": "trimtab observe RUN --to SINK"}
"""What `observe` was called before 0.4; these names go with 0.5."""


class Commands(Group):
    """The commands, and what people type in place of one: a log, `help`, an old name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words mean: a path that exists is for `diagnose`."""
        word, *rest = args
        if word in _OLD_NAMES and not ctx.resilient_parsing:
            typer.echo(f"trimtab: {word} is now: {_OLD_NAMES[word]}", err=True)
            return super().resolve_command(ctx, ["observe", *rest])
        if word not in self.commands and _is_log(word):
            return super().resolve_command(ctx, ["diagnose", *args])
        if word in self.commands or ctx.resilient_parsing:  # the latter is the shell's completion
            return super().resolve_command(ctx, args)
        if word == "help" and rest and not rest[0].startswith("-"):
            return self.resolve_command(ctx, [*rest, "--help"])
        if word in ("help", "version"):
            typer.echo(ctx.get_help() if word == "help" else f"trimtab {__version__}")
            raise typer.Exit
        if word in _INSTEAD:
            ctx.fail(f"there is no command {word!r}; {_INSTEAD[word]}")
        near = " or ".join(map(repr, get_close_matches(word, self.commands)))
        hint = f"did you mean {near}?" if near else "trimtab --help lists the commands"
        return ctx.fail(f"{word[:80]!r} is neither a command nor a file; {hint}")


def _is_log(word: str) -> bool:
    """Whether a word is what `diagnose` reads, or an address, which it explains how to read."""
    if word == "-" or word.startswith(("http://", "https://")):
        return True
    file, _, _ = word.partition("#")  # file#run is one of the runs in a file
    try:
        return bool(word) and (Path(word).exists() or Path(file).is_file())
    except OSError:  # longer than a path can be: pasted text
        return False


app = App(
    name="trimtab",
    cls=Commands,
    help="Keeps PyTorch training runs healthy: finds loss spikes, NaNs and divergence, and why.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="COMMAND | LOG...",
    epilog="Example: trimtab train.log, which is trimtab diagnose train.log",
    pretty_exceptions_enable=False,  # a traceback that can be pasted into a bug report
)
LOOK, BEFORE, WHILE, TRY = "Look at a run", "Before a run", "While it runs", "Try it"
_PLUGGED: dict[str, Any] = {"cls": CommandWithPlugins}
for _panel, _function, _short, _options in (
    (LOOK, diagnose, "Say what happened in a run, why, and what to do.", _PLUGGED),
    (LOOK, compare, "Find from where on two runs differ.", {}),
    (BEFORE, check, "Check a config, or model, optimizer and loader.", {}),
    (WHILE, rollback, "Ask the next launch to go on from an earlier checkpoint.", {}),
    (WHILE, observe, "Judge and watch runs, and send them to trackers and alerts.", _PLUGGED),
    (WHILE, run, "Run a training command, and relaunch it when it asks to.", {}),
    (WHILE, mcp, "Let agents ask about runs.", {}),
    (WHILE, note, "Add a note to a run, at its present step.", {}),
    (TRY, demo, "Break two runs of a small GPT, one of them guarded.", {}),
    (TRY, selftest, "Check on this machine what trimtab promises.", {}),
):
    app.command(rich_help_panel=_panel, short_help=_short, **_options)(_function)
checkpoints_app = App(cls=CheckpointCommands, no_args_is_help=True, help="Checkpoints of runs.")
checkpoints_app.command("list", short_help="Which of a run's are sound.", **_PLUGGED)(checkpoints)
checkpoints_app.command("same", short_help="What two of them differ in.")(same)
app.add_typer(
    checkpoints_app,
    name="checkpoints",
    rich_help_panel=WHILE,
    short_help="List a run's checkpoints, which of them are sound; compare two.",
)
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
