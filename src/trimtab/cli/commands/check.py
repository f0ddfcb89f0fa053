"""`trimtab check`: what is wrong with a run before it costs anything, by its config or objects."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.options import AsJson, ConfigFile, ExitCode, print_json


def check(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|MODULE:FUNCTION",
            help="A config of HF, axolotl, torchtitan or Megatron-LM, or a function that returns "
            "a dict with model, optimizer and more (docs/check.md).",
        ),
    ],
    off: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Switch a rule off by its id.")
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A fact that the config does not hold: parameters=7e9.",
        ),
    ] = None,
    config: ConfigFile = None,
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Coordinate check (muP) instead: call the function with each width.",
        ),
    ] = None,
    lr_range: Annotated[
        bool, typer.Option("--lr-range", help="Learning-rate range test of the function instead.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show rule ids, what passed, what was not checked."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a training config, or model, optimizer, scheduler and loader, before step 1.

    Shows what is wrong, why, and how to fix it. Nothing of the objects is changed.

    Example: trimtab check training_args.json

    Exit code: 0 nothing found, 1 findings, 2 usage error, 3 no readable config, or no torch.
    """
    from rich.console import Console

    from trimtab.checks import check_config
    from trimtab.checks.view import check_view
    from trimtab.cli.options import load_config, parse_settings

    if widths is not None and lr_range:
        raise typer.BadParameter("--widths and --lr-range are two tests; make them in turn")
    rules_off = (*load_config(config, None).check.off, *(off or ()))
    is_function = ":" in subject and not Path(subject).exists()
    if not is_function and widths is None and not lr_range:
        report = check_config(subject, off=rules_off, known=parse_settings(known or ()))
        found, printed = bool(report.ids), report.to_dict()
        view = check_view(report, is_verbose=verbose)
    else:
        if known:
            raise typer.BadParameter("--set is for configs; change the objects instead")
        from trimtab import check as check_objects
        from trimtab.checks.objects import learning_rate
        from trimtab.checks.objects.inputs import as_setup, call_setup, find_setup

        make = find_setup(subject)
        if widths is not None:
            coordinates = learning_rate.coordinate_check(make, learning_rate.parse_widths(widths))
            found, printed = not coordinates.is_stable, coordinates.to_dict()
            view = learning_rate.coordinates_view(coordinates)
        elif lr_range:
            rates = learning_rate.lr_range_test(**as_setup(call_setup(make)))
            found, printed, view = False, rates.to_dict(), learning_rate.range_view(rates)
        else:
            report = check_objects(**as_setup(call_setup(make)), off=rules_off)
            found, printed = bool(report.ids or report.changed), report.to_dict()
            view = check_view(report, is_verbose=verbose)
    if as_json:
        # The other two tests have fields of their own, so the name says which one was made.
        kind = "check --widths" if widths else "check --lr-range" if lr_range else "check"
        print_json(kind, printed)
    else:
        Console(highlight=False).print(view)
    raise typer.Exit(ExitCode.FINDINGS if found else ExitCode.CLEAN)
