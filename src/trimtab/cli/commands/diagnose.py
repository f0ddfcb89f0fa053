"""`trimtab diagnose`: what happened in a run, from its log alone."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.options import (
    AsJson,
    ConfigFile,
    ExitCode,
    RuleSet,
    Settings,
    Verbose,
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
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write the post-mortems, into a folder inside this one that belongs to this "
            "log.",
            show_default="nothing is written",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page with charts and post-mortems into this one file.",
            show_default="nothing is written",
        ),
    ] = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Say what happened in a run: what, when, which class, likely why, what to do.

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 unreadable or no usable loss.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab import diagnosis
    from trimtab.cli import output
    from trimtab.cli.options import load_config
    from trimtab.cli.progress import progress_bar
    from trimtab.report.incident_files import report_folder

    with output.reported_errors(), progress_bar() as progress:
        report = diagnosis.diagnose(
            path,
            rules=rules,
            config=load_config(config, settings),
            reference=reference,
            format=log_format,
            progress=progress,
        )
    output.print_failures(report)
    if as_json:
        print_json("diagnose", report.to_dict())
    else:
        output.print_view(report, questions=verbose)
    if out is not None:
        output.write_files(report, report_folder(out, path))
    if html is not None:
        from trimtab.report.pages.run_page import dashboard_page

        output.write_page(dashboard_page(report), html)
    raise typer.Exit(ExitCode.FINDINGS if report.incidents else ExitCode.CLEAN)
