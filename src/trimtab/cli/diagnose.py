"""`trimtab diagnose`: what happened in a run, from its log alone."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.exit_codes import ExitCode
from trimtab.core.config import Rules


def diagnose(
    path: Annotated[Path, typer.Argument(help="A run directory, or the log of any trainer.")],
    rules: Annotated[Rules, typer.Option(help="The rules to judge by.")] = Rules.TRIMTAB,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the post-mortems.", show_default="trimtab-LOG, or the run's"),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option("--format", help="The format of the log.", show_default="by its content"),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="A run over the same batches, to be compared with step by step."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; write post-mortems only with --out.")
    ] = False,
) -> None:
    """Say what happened in a run: what, when, which kind, likely why, what to do.

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 no readable loss.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli import output
    from trimtab.cli.examination import examine
    from trimtab.journal import RunDirectory

    with output.told_errors():
        account = examine(path, rules, log_format=log_format, reference=reference)
    if as_json:
        output.print_json(account)
    else:
        output.print_view(account)
        run = RunDirectory.find(path)
        out = out or (run.incidents if run else Path(f"trimtab-{path.stem}"))
    if out is not None:
        output.write_and_tell(account, out)
    raise typer.Exit(ExitCode.FINDINGS if account.opinions else ExitCode.CLEAN)
