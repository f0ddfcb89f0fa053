"""`trimtab demo`: one run that goes wrong twice, alone and with trimtab, side by side."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from trimtab.lab.demo import DemoRun

CURVE_WIDTH = 60
REDRAW_EVERY = 5
"""Steps from one drawing of the curves to the next."""


def demo(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the runs; each time a numbered one inside."),
    ] = Path("trimtab-demo"),
) -> None:
    """Break two runs of a small GPT, one only observed, and see which one survives.

    Prevent: the plan is checked. Detect and recover: two runs with the same seed and the same
    faults train side by side, one only observed, one in the mode "recover". Write up: the
    post-mortems in short. It takes about half a minute.

    Needs torch, tokenizers and torchdata: the `lab` extra.

    Example: trimtab demo

    Exit code: 0 both runs ended, 2 usage error, 3 the extra is not installed.
    """
    from trimtab.checks import check_config
    from trimtab.cli import output
    from trimtab.diagnosis import diagnose
    from trimtab.lab.demo import FLIP_STEP, NAN_STEP, PLAN, run_demo

    folder = _next_folder(out)
    typer.echo("prevent: what `trimtab check` says of the plan")
    for finding in check_config(PLAN).findings:
        typer.echo(f"  {finding.rule.title}: {finding.what}")
    typer.echo("detect and recover: a GPT of 0.15M parameters, twice with the same faults")
    with _curves({FLIP_STEP: "a bit of a weight flips", NAN_STEP: "the loss is NaN"}) as show:
        alone, recovered = run_demo(folder, show)
    report = diagnose(recovered.folder)
    directory = output.find_run(recovered.folder)
    for line in _outcome(alone, recovered):
        typer.echo(line)
    from trimtab.report.postmortem import in_short

    typer.echo("\nwrite up: the post-mortems in short")
    for incident in report.incidents:
        typer.echo(f"incident {incident.incident.number}")
        for name, text in in_short(incident, report):
            typer.echo(f"  {name:6} {text}")
    typer.echo("")
    output.write_into_run(report, directory)
    typer.echo(
        f"the run that was only observed: trimtab diagnose {alone.folder}\n"
        "your own log: trimtab diagnose LOG",
        err=True,
    )


@contextmanager
def _curves(
    faults: dict[int, str],
) -> Iterator[Callable[[int, Sequence[float], Sequence[float]], None]]:
    """Yield a function that draws both curves while they grow, or the faults as lines.

    The guards' own log would stand between the curves; what they said is in the report.
    """
    import logging

    from rich.console import Console
    from rich.live import Live

    from trimtab.cli.progress import shows_progress

    console = Console()
    log = logging.getLogger("trimtab")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with Live(console=console, auto_refresh=False) as live:
            is_live = shows_progress(console)

            def show(step: int, alone: Sequence[float], recovered: Sequence[float]) -> None:
                if step in faults:
                    console.print(f"step {step}: {faults[step]}", highlight=False)
                if is_live and step % REDRAW_EVERY == 0:
                    live.update(_drawing(alone, recovered), refresh=True)

            yield show
            live.update("")
    finally:
        log.setLevel(level)


def _drawing(alone: Sequence[float], recovered: Sequence[float]) -> "Text":
    from rich.text import Text

    return Text("\n").join([Text(_curve("observe", alone)), Text(_curve("recover", recovered))])


def _curve(name: str, losses: Sequence[float]) -> str:
    import numpy as np

    from trimtab.core.block import Column
    from trimtab.report.sparkline import sparkline

    curve = sparkline(Column.complete(np.array(losses)), CURVE_WIDTH)
    return f"  {name:8}  {curve:{CURVE_WIDTH}}  loss {losses[-1]:.2f}"


def _outcome(alone: "DemoRun", recovered: "DemoRun") -> list[str]:
    """Return the curves of both runs, and what the guard did."""
    from trimtab.core.signals import LOSS

    lost, discarded = recovered.updates_lost, recovered.num_discarded
    return [
        _curve("observe", alone.block.column(LOSS).values.tolist()),
        _curve("recover", recovered.block.column(LOSS).values.tolist()),
        f"undone: {lost} updates; kept out of the weights: {discarded} steps; nothing else of the "
        "run was touched",
    ]


def _next_folder(out: Path) -> Path:
    number = 1
    while (out / f"run-{number}").exists():
        number += 1
    return out / f"run-{number}"
