"""`trimtab report`: the page, the post-mortems and the goodput of a run, written into it."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.options import AsJson, ConfigFile, RuleSet, Settings, Verbose, print_json


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    rules: RuleSet = None,
    config: ConfigFile = None,
    settings: Settings = None,
    price: Annotated[
        float | None, typer.Option(help="What an hour of the whole job costs, in $.", min=0.0)
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page of the run in the browser.")
    ] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Judge a run's journal, compute its goodput, and write its page and post-mortems into the run.

    Earlier ones of the run are replaced. LESSONS.md beside the run gets one line per lesson.

    Exit code: 0 report written, 2 usage error, 3 no readable journal or no usable loss.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import dataclasses

    from trimtab.cli import output
    from trimtab.cli.options import load_config
    from trimtab.cli.progress import progress_bar
    from trimtab.diagnosis import diagnose

    with output.reported_errors():
        directory = output.find_run(run)
        with progress_bar() as progress:
            found = diagnose(
                run, rules=rules, config=load_config(config, settings), progress=progress
            )
    found = dataclasses.replace(found, price_per_hour=price)
    output.print_failures(found)
    if not as_json:
        output.print_view(found, questions=verbose)
        output.print_goodput(found)
    postmortems = output.write_files(found, directory.incidents)
    page = output.write_dashboard(found, directory)
    output.write_lessons(found, directory)
    if as_json:
        shown = {"goodput": output.goodput_to_dict(found), "page": page, "postmortems": postmortems}
        print_json("report", found.to_dict() | shown)
    if open_page and page is not None:
        typer.launch(page.resolve().as_uri())
