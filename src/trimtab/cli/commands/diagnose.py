"""`trimtab diagnose`: what happened in a run; on request its page and post-mortems."""

import signal
import sys
import threading
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from trimtab.cli.options import AsJson, ConfigFile, ExitCode, RuleSet, Settings, formats, print_json


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="A log of any trainer, - for standard input, or a run directory."
        ),
    ],
    rules: RuleSet = None,
    config: ConfigFile = None,
    settings: Settings = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="The format of the log.",
            show_default=False,
            autocompletion=formats,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The name of the loss in the log.", show_default=False),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The name of the step in the log.", show_default=False),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The run in a file that holds several.", show_default=False
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="What an hour of the job costs.", min=0.0),
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the files of a run directory."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write post-mortems into this folder.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with charts.", show_default=False),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the questions behind causes.")
    ] = False,
    as_json: AsJson = False,
    brief: Annotated[
        bool,
        typer.Option("--brief", help="Print one short line of JSON."),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TICK",
            help="What is new since an earlier brief.",
        ),
    ] = None,
) -> None:
    """Say what happened in a run: what, when, likely why, what to do. Writes only if asked to.

    Example: trimtab diagnose train.log --html page.html

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 unreadable; with --brief 0 nothing
    new, 1 something new, 4 somebody has to act.
    """
    import dataclasses

    from trimtab import diagnosis
    from trimtab.cli import output
    from trimtab.cli.options import load_config, split_facts
    from trimtab.cli.progress import progress_bar
    from trimtab.core.jsonable import to_jsonable
    from trimtab.journal import RunDirectory
    from trimtab.report.incident_files import report_folder
    from trimtab.report.interventions import find_interventions
    from trimtab.report.pages.run_page import dashboard_page

    if since is not None and not brief:
        raise typer.BadParameter("--since belongs to --brief")
    facts, settings = split_facts(settings)
    directory = output.find_run(paths[0]) if write else RunDirectory.find(paths[0])
    what = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
    with progress_bar(what) as progress:
        report = diagnosis.diagnose(
            [StandardInput() if path == DASH else path for path in paths],
            rules=rules,
            config=load_config(config, settings),
            format=log_format,
            loss=loss,
            step=step,
            run=run,
            facts=facts,
            progress=progress,
        )
    names = ["standard input" if path == DASH else str(path) for path in paths]
    report = dataclasses.replace(report, price_per_hour=price, source=", ".join(names))
    output.print_failures(report)
    if not (as_json or brief):
        with output.outliving_its_reader():
            output.print_view(report, questions=verbose)
            if directory is not None:
                output.print_goodput(report)
                output.print_interventions(report)
    written: dict[str, Any] = {}
    if write and directory is not None:
        written = output.write_into_run(report, directory)
    if out is not None:
        output.write_files(report, report_folder(out, paths[0]))
    if html is not None:
        output.write_page(dashboard_page(report), html)
    if brief:
        answer = report.brief(since)
        print_json("brief", answer, is_line=True)
        is_new = bool(report.undismissed if since is None else answer["new"])
        raise typer.Exit(ExitCode.ACT if report.tone == "alarm" else ExitCode(is_new))
    if as_json:
        goodput = None if directory is None else output.goodput_to_dict(report)
        acts = to_jsonable(find_interventions(report.block))
        shown = {**report.to_dict(), "goodput": goodput, "interventions": acts, **written}
        print_json("diagnose", shown)
    raise typer.Exit(ExitCode.FINDINGS if report.undismissed else ExitCode.CLEAN)


# What is pasted or piped is read like any log

DASH = Path("-")

_PATIENCE = 2.0
"""Seconds after which an input that has not ended is said to be waited for."""


class StandardInput:
    """Standard input as a file object that ends at its end or at Ctrl-C, whichever comes first."""

    name = "standard input"

    def __init__(self) -> None:
        self._has_ended = self._is_waiting = False
        self._hint = threading.Timer(_PATIENCE, _say_waiting)
        self._hint.daemon = True

    def read(self, size: int) -> bytes:
        """Return what has come, at most `size` bytes; nothing after the end."""
        if self._hint.ident is None:
            self._hint.start()
            # Also where a shell that started it in the background has SIGINT ignored.
            signal.signal(signal.SIGINT, self._end)
        block = b""
        with suppress(KeyboardInterrupt):
            self._is_waiting = not self._has_ended
            # read1 returns what has come: an interrupt must not cost what is still in a buffer.
            source = cast(BufferedReader, sys.stdin.buffer)
            block = source.read1(size) if self._is_waiting else b""
        self._is_waiting = False
        if not block:
            self._hint.cancel()
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return block

    def _end(self, number: int, frame: Any) -> None:
        self._has_ended = True
        if self._is_waiting:
            raise KeyboardInterrupt


def _say_waiting() -> None:
    sys.stderr.write(
        "trimtab: reading standard input until it ends; Ctrl-C reports what has come so far\n"
    )
