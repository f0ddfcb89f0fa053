"""What the commands print: the report, the error, where the files are."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from trimtab.cli.options import ExitCode
from trimtab.cli.progress import progress_bar
from trimtab.core.errors import ConfigError, JournalError, TrimtabError
from trimtab.core.jsonable import to_jsonable
from trimtab.core.text import counted, duration_text, printable
from trimtab.explain.measures import compute_discards
from trimtab.explain.time_use import compute_goodput, compute_time_use
from trimtab.journal import RunDirectory
from trimtab.journal.directory import incident_folder_name
from trimtab.journal.files import replace_file
from trimtab.report.incident_files import update_lessons, write_incidents
from trimtab.report.interventions import find_interventions
from trimtab.report.pages.run_page import DASHBOARD_FILE, POSTMORTEM_FILE, dashboard_page
from trimtab.report.run_report import RunReport
from trimtab.report.terminal import report_view
from trimtab.report.wording import unsaved_text

MAX_NAMED = 3
"""Post-mortems that are named one by one."""


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn a TrimtabError into a message on standard error and an exit code."""
    try:
        yield
    except TrimtabError as error:
        # A message quotes logs and paths, whose control codes must not reach the terminal.
        # The first line breaks are ours: those of a log are quoted.
        lines = [printable(line) for line in str(error).split("\n")]
        typer.echo("trimtab: " + "\n".join(lines[:3]), err=True)
        code = ExitCode.USAGE if isinstance(error, ConfigError) else ExitCode.UNREADABLE
        raise typer.Exit(code) from error


@contextmanager
def outliving_its_reader() -> Iterator[None]:
    """Go on where nobody reads any more what is printed (`| head -1`): files are still written."""
    try:
        yield
    except (BrokenPipeError, SystemExit):  # rich exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def find_run(path: Path) -> RunDirectory:
    """Return the run directory at a path; raises JournalError if there is none."""
    found = RunDirectory.find(path)
    if found is None and not path.exists():
        raise JournalError(f"{path} does not exist; check the path")
    if found is None:
        raise JournalError(
            f"{path} is not a run directory (it has no trimtab/ folder with a journal; links in it "
            "are not followed); for a log use `trimtab diagnose LOG` with --out or --html, for a "
            "folder of runs `trimtab observe FOLDER`"
        )
    return found


def print_view(report: RunReport, *, questions: bool = False) -> None:
    """Print the report for people; `questions` shows how each answer was reached."""
    console = Console(highlight=False)
    view = report_view(report, console.width, questions=questions)
    for line in console.render_lines(view, pad=False):
        text = Text.assemble(*((part.text, part.style or "") for part in line))
        text.rstrip()  # tables pad their last column: it shows where a report is pasted
        console.print(text, soft_wrap=True)


def print_failures(report: RunReport) -> None:
    for failure in report.failures:
        typer.echo(printable(f"trimtab: {failure}"), err=True)


def print_goodput(report: RunReport) -> None:
    """Print how much of the run was kept, and what it cost."""
    goodput = compute_goodput(report.block, report.judged)
    parts = [
        f"goodput: {goodput.steps_kept:,} of {goodput.steps_done:,} steps kept "
        f"({100 * goodput.share:.1f} %)"
    ]
    discards = compute_discards(report.block)
    if discards is not None:
        parts.append(f"{discards.count:,} discarded")
    if goodput.hours is None:
        parts.append("time not recorded")
    else:
        parts.append(duration_text(3600 * goodput.hours))
        if report.price_per_hour is not None:
            parts.append(f"the run cost ${goodput.hours * report.price_per_hour:,.2f}")
    if unsaved := unsaved_text(report):
        parts.append(unsaved)
    typer.echo(", ".join(parts))
    use = compute_time_use(report.block, report.judged)
    if use is not None:
        typer.echo(f"time: {use}")


MAX_ACTS = 10
"""Interventions that the terminal shows; the page and `--json` have all."""


def print_interventions(report: RunReport) -> None:
    """Print what trimtab and people did to the run, and what came of it."""
    acts = find_interventions(report.block)
    shown = acts[-MAX_ACTS:]
    if not acts:
        return
    left_out = f", the last {len(shown)}" if len(shown) < len(acts) else ""
    typer.echo(f"{counted(len(acts), 'intervention')}{left_out}:")
    for act in shown:
        because = f", because {act.reason}" if act.reason else ""
        hoped = f"; expected: {act.expected}" if act.expected else ""
        line = f"  step {act.step:,}, {act.author}: {act.what}{because}{hoped}; {act.outcome}"
        typer.echo(fill(printable(line), Console().width, subsequent_indent="    "))


def goodput_to_dict(report: RunReport) -> dict[str, Any]:
    goodput = compute_goodput(report.block, report.judged)
    cost = None
    if goodput.hours is not None and report.price_per_hour is not None:
        cost = goodput.hours * report.price_per_hour
    time = to_jsonable(compute_time_use(report.block, report.judged))
    return {**to_jsonable(goodput), "share": goodput.share, "cost": cost, "time": time}


def write_files(report: RunReport, folder: Path) -> list[Path]:
    """Write the files of the incidents and print where they are, or why they are not.

    Returns the post-mortems.
    """
    try:
        with progress_bar() as progress:
            written = write_incidents(report, folder, partial(progress, "Writing"))
    except OSError as error:
        message = f"trimtab: no post-mortem written: {error}; choose another folder with --out"
        typer.echo(printable(message), err=True)
        return []
    for postmortem in written[:MAX_NAMED]:
        typer.echo(printable(f"Post-mortem: {postmortem}"), err=True)
    if len(written) > MAX_NAMED:
        rest = len(written) - MAX_NAMED
        typer.echo(printable(f"{rest} more post-mortems in {folder}"), err=True)
    return written


def write_page(text: str, file: Path) -> bool:
    """Write a page and print where it is, or why it is not."""
    try:
        replace_file(file, text)
    except OSError as error:
        typer.echo(printable(f"trimtab: no page written: {error}"), err=True)
        return False
    typer.echo(printable(f"Page: {file}"), err=True)
    return True


def write_into_run(report: RunReport, directory: RunDirectory) -> dict[str, Any]:
    """Write post-mortems and page of a run into its directory, and its lessons beside it.

    Return the paths of what was written; `page` is None if it could not be written.
    """
    postmortems = write_files(report, directory.incidents)
    page = _write_dashboard(report, directory)
    _write_lessons(report, directory)
    return {"page": page, "postmortems": postmortems}


def _write_dashboard(report: RunReport, directory: RunDirectory) -> Path | None:
    folder = directory.incidents.name
    files = {
        one.number: f"{folder}/{incident_folder_name(one.number, one.onset.step)}/{POSTMORTEM_FILE}"
        for one in (found.incident for found in report.incidents)
    }
    page = directory.home / DASHBOARD_FILE
    return page if write_page(dashboard_page(report, files=files), page) else None


def _write_lessons(report: RunReport, directory: RunDirectory) -> None:
    root = directory.root.resolve()
    try:
        file = update_lessons(report, root.parent, root.name)
    except OSError as error:
        typer.echo(printable(f"trimtab: no lessons written: {error}"), err=True)
        return
    if file is not None:
        typer.echo(printable(f"Lessons of all runs: {file}"), err=True)
