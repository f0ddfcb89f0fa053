"""`trimtab demo`: a run that goes wrong twice, its page and post-mortems, in under a minute."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the run; each run gets a numbered one inside.")
    ] = Path("trimtab-demo"),
    seed: Annotated[int, typer.Option(help="A different seed gives a different run.")] = 0,
) -> None:
    """Train a small GPT for half a minute, break it twice, and see what trimtab reports.

    Needs torch, tokenizers and torchdata: pip install "trimtab[lab]".
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from rich.console import Console
    from rich.progress import Progress

    from trimtab.cli import output
    from trimtab.diagnosis import diagnose

    with output.reported_errors():
        from trimtab.lab.demo import run_demo

        run_dir = _next_folder(out)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("Preparing text", total=None)

            def advance(done: int, total: int) -> None:
                bar.update(task, description="Training", completed=done, total=total)

            run_demo(run_dir, seed=seed, cache_dir=None, advance=advance)
        report = diagnose(run_dir)
    output.print_view(report)
    output.print_goodput(report)
    with output.reported_errors():
        directory = output.find_run(run_dir)
    output.write_files(report, directory.incidents)
    output.write_dashboard(report, directory)
    typer.echo(f"See it again with: trimtab report {run_dir} --open", err=True)


def _next_folder(out: Path) -> Path:
    """The first folder `run-N` that does not exist yet."""
    number = 1
    while (out / f"run-{number}").exists():
        number += 1
    return out / f"run-{number}"
