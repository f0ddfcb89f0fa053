"""`trimtab demo`: a run that goes wrong twice, alone and with trimtab, in under a minute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trimtab.lab.demo import DemoRun

CURVE_WIDTH = 72


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the run; each run gets a numbered one inside.")
    ] = Path("trimtab-demo"),
) -> None:
    """Train a small GPT twice, break it twice, and see a run recover by itself.

    The first run is only observed, the second one recovers; both have the same seed and faults.

    Needs torch, tokenizers and torchdata, which the `lab` extra of trimtab installs.

    Exit code: 0 both runs ended, 2 usage error, 3 the extra is not installed.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from functools import partial

    from trimtab.cli import output
    from trimtab.cli.progress import progress_bar
    from trimtab.diagnosis import diagnose

    with output.reported_errors():
        from trimtab.lab.demo import run_demo

        folder = _next_folder(out)
        with progress_bar() as progress:
            alone, recovered = run_demo(
                folder,
                begin=lambda mode: typer.echo(f"-- mode {mode}", err=True),
                advance=partial(progress, "Training"),
            )
        report = diagnose(recovered.folder)
    typer.echo("-- the run that recovered")
    output.print_view(report)
    output.print_goodput(report)
    for line in _comparison(alone, recovered):
        typer.echo(line)
    with output.reported_errors():
        directory = output.find_run(recovered.folder)
    output.write_into_run(report, directory)
    typer.echo(
        f"the runs are in {folder}; to judge one again: trimtab diagnose {recovered.folder}",
        err=True,
    )


def _comparison(alone: "DemoRun", recovered: "DemoRun") -> list[str]:
    """Return the loss curves of both runs, and what the recovery cost and saved."""
    from trimtab.core.signals import LOSS
    from trimtab.lab.demo import FLIP_STEP, NAN_STEP, STEPS
    from trimtab.report.sparkline import sparkline

    curves = [
        f"{name:11} {sparkline(run.block.column(LOSS), CURVE_WIDTH)}  loss {run.final_loss:.2f}"
        for name, run in (("only observed", alone), ("recovered", recovered))
    ]
    cost = recovered.updates_lost
    return [
        "",
        f"one bit of a weight flips at step {FLIP_STEP}, the loss is NaN at step {NAN_STEP}:",
        *curves,
        f"the recovery cost {cost} updates, and {recovered.num_discarded} steps were discarded",
        f"without it the {STEPS - FLIP_STEP} steps since step {FLIP_STEP} would be lost, and a "
        f"person would have to restart the run: {STEPS - FLIP_STEP - cost} steps saved",
    ]


def _next_folder(out: Path) -> Path:
    """Return the first folder `run-N` that does not exist yet."""
    number = 1
    while (out / f"run-{number}").exists():
        number += 1
    return out / f"run-{number}"
