"""`trimtab diagnose`: what happened in a run; on request its page and post-mortems."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.cli.options import (
    AsJson,
    ConfigFile,
    ExitCode,
    RuleSet,
    Settings,
    formats,
    print_json,
)


def diagnose(
    path: Annotated[Path, typer.Argument(help="A run directory, or the log of any trainer.")],
    rules: RuleSet = None,
    config: ConfigFile = None,
    settings: Settings = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="A run over the same batches, to compare with step by step."),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="The format of the log.",
            show_default="by its content",
            autocompletion=formats,
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="What an hour of the whole job costs, in $.", min=0.0)
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Write page and post-mortems into the run directory, in place of earlier ones, "
            "and its lessons into LESSONS.md beside it.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the post-mortems, into a folder inside this one that belongs to this log.",
            show_default="nothing is written",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with charts and post-mortems into this one file.",
            show_default="nothing is written",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the questions that led to each cause.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what happened in a run: what, when, which class, likely why, what to do.

    For a run directory also how many of its steps were kept. Writes nothing unless asked to.

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 unreadable or no usable loss.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import dataclasses

    from trimtab import diagnosis
    from trimtab.cli import output
    from trimtab.cli.options import load_config
    from trimtab.cli.progress import progress_bar
    from trimtab.journal import RunDirectory
    from trimtab.report.incident_files import report_folder
    from trimtab.report.pages.run_page import dashboard_page

    with output.reported_errors():
        directory = output.find_run(path) if write else RunDirectory.find(path)
        with progress_bar() as progress:
            report = diagnosis.diagnose(
                path,
                rules=rules,
                config=load_config(config, settings),
                reference=reference,
                format=log_format,
                progress=progress,
            )
    report = dataclasses.replace(report, price_per_hour=price)
    output.print_failures(report)
    if not as_json:
        output.print_view(report, questions=verbose)
        if directory is not None:
            output.print_goodput(report)
    written: dict[str, Any] = {}
    if write and directory is not None:
        written = output.write_into_run(report, directory)
    if out is not None:
        output.write_files(report, report_folder(out, path))
    if html is not None:
        output.write_page(dashboard_page(report), html)
    if as_json:
        goodput = None if directory is None else output.goodput_to_dict(report)
        print_json("diagnose", {**report.to_dict(), "goodput": goodput, **written})
    raise typer.Exit(ExitCode.FINDINGS if report.incidents else ExitCode.CLEAN)
