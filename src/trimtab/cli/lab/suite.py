"""`trimtab lab suite`: all faults, their twins and the hard negatives, as labelled runs."""

from pathlib import Path
from typing import Annotated

import typer


def suite(
    out: Annotated[Path, typer.Option(help="Folder of the suite; an unfinished one goes on.")],
    fast: Annotated[bool, typer.Option(help="Each fault once: minutes, not an hour.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes; default: one per core.", min=1)
    ] = None,
) -> None:
    """Build the labelled runs that trimtab is measured on.

    Each run has its journal and a truth.json beside it. Needs torch, tokenizers and torchdata: pip
    install "trimtab[lab]".
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from trimtab.cli import output

    started = time.monotonic()
    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with output.reported_errors():
        from trimtab.lab.scenarios.suite import build_suite, fast_suite, full_suite

        scenarios = fast_suite() if fast else full_suite()
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
    minutes = (time.monotonic() - started) / 60
    typer.echo(
        f"{built.runs} runs in {out}, {built.made} of them made now in {minutes:.1f} minutes, "
        f"{size / 2**20:.0f} MB; look at one with: trimtab lab show {out}/NAME"
    )
