"""What the commands print: the account, the error, where the files are."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from trimtab.cli.examination import write_incidents
from trimtab.cli.exit_codes import ExitCode
from trimtab.core.errors import ConfigError, JournalError, TrimtabError
from trimtab.diagnose.measures.discards import compute_discards
from trimtab.diagnose.measures.goodput import compute_goodput
from trimtab.journal import RunDirectory
from trimtab.report.plain import plain
from trimtab.report.run_report import RunReport
from trimtab.report.terminal import view


@contextmanager
def told_errors() -> Iterator[None]:
    """Turn an error of ours into one line on standard error and an exit code."""
    try:
        yield
    except TrimtabError as error:
        typer.echo(f"trimtab: {plain(str(error))}", err=True)
        code = ExitCode.USAGE if isinstance(error, ConfigError) else ExitCode.UNREADABLE
        raise typer.Exit(code) from error


def find_run(path: Path) -> RunDirectory:
    """The run directory at a path; raises JournalError if it is none."""
    found = RunDirectory.find(path)
    if found is None:
        raise JournalError(
            f"{path} is not a run directory (it has no trimtab/ folder with a journal); "
            "for a log file use `trimtab diagnose`"
        )
    return found


def print_view(account: RunReport) -> None:
    """Print the account for people."""
    console = Console(highlight=False)
    console.print(view(account, console.width))


def print_goodput(account: RunReport) -> None:
    """Print how much of the run was kept, and what it took."""
    goodput = compute_goodput(account.block)
    parts = [
        f"goodput: {goodput.steps_kept:,} of {goodput.steps_done:,} steps kept "
        f"({100 * goodput.share:.1f} %)"
    ]
    discards = compute_discards(account.block)
    if discards is not None:
        parts.append(f"{discards.count:,} discarded")
    if goodput.hours is None:
        parts.append("time not recorded")
    else:
        short = goodput.hours < 1
        parts.append(f"{60 * goodput.hours:.1f} minutes" if short else f"{goodput.hours:.1f} hours")
        if account.price_per_hour is not None:
            parts.append(f"{goodput.hours * account.price_per_hour:,.2f} in money")
    typer.echo(", ".join(parts))


def print_json(account: RunReport) -> None:
    """Print the account for machines."""
    sys.stdout.write(json.dumps(account.to_dict(), indent=1, allow_nan=False) + "\n")


def write_and_tell(account: RunReport, folder: Path) -> None:
    """Write the files of the incidents and say where they are, or why they are not."""
    if not account.opinions:
        return
    try:
        written = write_incidents(account, folder)
    except OSError as error:
        typer.echo(f"trimtab: no post-mortem written: {error}; choose a folder by --out", err=True)
        return
    if len(written) == 1:
        told = f"Post-mortem: {written[0]}"
    else:
        told = f"{len(written)} post-mortems in {folder}, the first: {written[0]}"
    typer.echo(plain(told), err=True)
