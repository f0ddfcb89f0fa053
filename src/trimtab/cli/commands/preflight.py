"""`trimtab preflight`: check the real objects of a run before its first step."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.exit_codes import ExitCode
from trimtab.cli.json_output import AsJson, print_json


def preflight(
    setup: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function that returns a dict with model, optimizer and any of scheduler, "
            "loader, loss, steps, clip_norm, pretrained.",
        ),
    ],
    off: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Switch a check or rule off by its id; may be repeated."),
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Coordinate check (muP) instead: call the function with each width.",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the picture of --widths.")
    ] = None,
    lr_range: Annotated[
        bool, typer.Option("--lr-range", help="Learning-rate range test instead.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what passed, and what it does not see.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check model, optimizer, scheduler and loader before step 1; nothing of them is changed.

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 torch or the objects are missing.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from rich.console import Console, RenderableType

    from trimtab.cli import output

    with output.reported_errors():
        if svg is not None and widths is None:
            raise typer.BadParameter("--svg needs --widths, for example --widths 64,128,256")
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError:
            from trimtab.core.errors import MissingExtra

            message = 'trimtab preflight needs torch; run: pip install "trimtab[torch]"'
            raise MissingExtra(message) from None
        from trimtab.checks.objects.lr_range import lr_range_test
        from trimtab.checks.objects.mup import coordinate_check, parse_widths
        from trimtab.checks.objects.range_views import coordinates_view, range_view
        from trimtab.checks.objects.run import preflight as run_preflight
        from trimtab.checks.objects.setups import as_setup, call_setup, find_setup
        from trimtab.checks.objects.view import preflight_view

        make = find_setup(setup)
        view: RenderableType
        if widths is not None:
            check = coordinate_check(make, parse_widths(widths))
            has_findings, printed = not check.is_stable, check.to_dict()
            view = coordinates_view(check)
            if svg is not None:
                output.write_page(check.to_svg(), svg)
        elif lr_range:
            found = lr_range_test(**as_setup(call_setup(make)))
            has_findings, printed, view = False, found.to_dict(), range_view(found)
        else:
            report = run_preflight(**as_setup(call_setup(make)), off=off or ())
            has_findings = bool(report.ids or report.changed)
            printed, view = report.to_dict(), preflight_view(report, is_verbose=verbose)
    if as_json:
        print_json("preflight", printed)
    else:
        Console(highlight=False).print(view)
    raise typer.Exit(ExitCode.FINDINGS if has_findings else ExitCode.CLEAN)
