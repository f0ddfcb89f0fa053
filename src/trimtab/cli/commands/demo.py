"""`trimtab demo`: one run that goes wrong twice, alone and with trimtab, side by side."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.text import Text

CURVE_WIDTH = 60
LAST = 20
"""Steps whose mean loss stands beside a curve: that of one step is mostly its batch."""
REDRAW_EVERY = 5
"""Steps from one drawing of the curves to the next."""


def demo(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the runs; each time a numbered one inside."),
    ] = Path("trimtab-demo"),
) -> None:
    """Break two runs of a small GPT, one only observed, and see which one survives.

    The plan is checked. Then two runs with the same seed and the same faults train side by side,
    one only observed, one in the mode "recover", and what happened is written up. It takes about
    a minute.

    Needs torch and tokenizers: the `lab` extra.

    Example: trimtab demo

    Exit code: 0 both runs ended, 2 usage error, 3 the extra is not installed.
    """
    from trimtab.checks import check_config
    from trimtab.cli import output
    from trimtab.core.signals import LOSS
    from trimtab.diagnosis import diagnose
    from trimtab.lab.demo import FLIP_STEP, NAN_STEP, PLAN, run_demo
    from trimtab.report.postmortem import in_short
    from trimtab.report.sparkline import marks

    folder = _next_folder(out)
    typer.echo("before the run: what `trimtab check` says of the plan")
    for finding in check_config(PLAN).findings:
        typer.echo(f"  {finding.rule.title}: {finding.what}")
    typer.echo("\nthe run: a small GPT, trained twice with the same seed and the same two faults")
    faults = {
        FLIP_STEP: "one bit of a weight flips in memory",
        NAN_STEP: "all targets of the batch are masked: its loss is 0/0",
    }
    with _curves(faults) as show:
        alone, recovered = run_demo(folder, show)
    report = diagnose(recovered.folder)
    directory = output.find_run(recovered.folder)
    length = len(alone.block.step)
    typer.echo(" " * 12 + marks([(FLIP_STEP, "flip"), (NAN_STEP, "NaN")], length, CURVE_WIDTH))
    for name, run in (("observe", alone), ("recover", recovered)):
        typer.echo(_curve(name, run.block.column(LOSS).values.tolist()))
    typer.echo(
        f"In recover, trimtab found the flip of step {FLIP_STEP} when it next summed the bits, "
        f"took it back ({recovered.updates_lost} updates are lost) and kept the NaN out of the "
        "weights.\nNothing else of the run was touched."
    )
    typer.echo("\nafterwards: the post-mortems of recover, in short")
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
                    console.print(f"  step {step}: {faults[step]}", highlight=False)
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
    now = losses[-1] if np.isnan(losses[-1]) else np.nanmean(losses[-LAST:])
    return f"  {name:8}  {curve:{CURVE_WIDTH}}  loss {now:.2f}"


def _next_folder(out: Path) -> Path:
    number = 1
    while (out / f"run-{number}").exists():
        number += 1
    return out / f"run-{number}"
