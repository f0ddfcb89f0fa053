"""`trimtab lab suite`: faults, hard negatives and their clean twins, as labelled runs."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.json_output import AsJson, print_json


def suite(
    out: Annotated[
        Path, typer.Option(help="Folder of the suite; an unfinished suite is continued.")
    ],
    kinds: Annotated[
        str | None,
        typer.Option(help="Only these kinds, e.g. F02,cooldown. Default: all of `lab list`."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Only these seeds, e.g. 31,32. Default: 0 to 4; hard negatives 0 to 8."),
    ] = None,
    shape: Annotated[
        str, typer.Option(help="Shape of the models: small, deep (4 layers) or broad (vocabulary).")
    ] = "small",
    fast: Annotated[
        bool, typer.Option(help="Each fault once, in minutes; not with --kinds, --seeds, --shape.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes. Default: one per core.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build the labelled runs that trimtab is measured on, or a part of them.

    Faults are built both mild and severe. Each run has its journal and a truth.json, and the clean
    twin of each run is built too. --kinds and --seeds choose runs; both are comma-separated lists.

    Needs the `lab` extra of trimtab: torch, tokenizers and torchdata.

    Exit code: 0 built, 2 usage error, 3 the lab cannot do this here.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from trimtab.cli import output
    from trimtab.cli.progress import shows_progress

    if fast and (kinds is not None or seeds is not None or shape != "small"):
        raise typer.BadParameter(
            "--fast has a fixed choice of runs; leave out --kinds and --seeds, and --shape"
        )
    wanted_kinds, wanted_seeds = _names(kinds), _seeds(seeds)
    started = time.monotonic()
    console = Console(stderr=True)
    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not shows_progress(console),
    )
    with output.reported_errors():
        from trimtab.lab.scenarios.scenario import Shape
        from trimtab.lab.scenarios.suite import build_suite, fast_suite, make_suite

        if shape not in set(Shape):
            raise typer.BadParameter(f"--shape is one of {', '.join(Shape)}, got {shape!r}")
        wanted_shape = Shape(shape)
        scenarios = fast_suite() if fast else make_suite(wanted_kinds, wanted_seeds, wanted_shape)
        with bar:
            task = bar.add_task("preparing text", total=None)
            built = build_suite(
                scenarios,
                out,
                workers=workers,
                on_text=lambda done, total: bar.update(task, completed=done, total=total),
                on_run=lambda done, total: bar.update(
                    task, description="runs", completed=done, total=total
                ),
            )
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if as_json:
        shown = {"folder": out, "runs": built.runs, "trained": built.trained, "bytes": size}
        print_json("lab suite", shown)
        return
    minutes = (time.monotonic() - started) / 60
    typer.echo(
        f"{built.runs} runs in {out} ({size / 2**20:.0f} MB), {built.trained} of them trained now "
        f"in {minutes:.1f} minutes; to look at one: trimtab lab show {out}/NAME"
    )


def _names(text: str | None) -> list[str] | None:
    """The items of a comma-separated list, each once; None if the option was not given."""
    if text is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter(f"expected a comma-separated list, got {text!r}")
    return names


def _seeds(text: str | None) -> list[int] | None:
    names = _names(text)
    if names is None:
        return None
    if not all(name.isascii() and name.isdecimal() for name in names):
        raise typer.BadParameter(f"--seeds takes whole numbers such as 31,32, got {text!r}")
    return list(dict.fromkeys(map(int, names)))
