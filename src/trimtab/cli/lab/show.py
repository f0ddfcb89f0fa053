"""`trimtab lab show`: the curves and the truth of a run of the lab."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.json_output import AsJson, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_CURVES = ("loss", "grad_norm", "lr", "update_norm", "adam_v_norm", "loss_scale", "step_seconds")
_NAME_WIDTH = 14


def show(
    run: Annotated[Path, typer.Argument(help="A run of `lab run` or `lab suite`.")],
    as_json: AsJson = False,
) -> None:
    """Show the curves of a run with the fault marked, its clean twin, and what was done to it.

    Exit code: 0 shown, 2 usage error, 3 not a run of the lab.
    """
    print_trial(run, as_json="lab show" if as_json else None)


def print_trial(run: Path, *, as_json: str | None) -> None:
    """Print the curves and the truth of a trial; as JSON of the command of that name, if given."""
    # Imported here so that `trimtab --help` does not wait for numpy.
    from rich.console import Console

    from trimtab.cli import output

    console = Console(highlight=False)
    with output.reported_errors():
        from trimtab.lab.scenarios.suite import read_truth

        truth = read_truth(run)
        if as_json is not None:
            print_json(as_json, {"run": str(run), "truth": truth})
            return
        console.print(_curves(run, truth, console.width))
    console.print(_summary(truth))
    typer.echo(f"for trimtab's diagnosis: trimtab report {run}", err=True)


def _curves(run: Path, truth: dict[str, Any], width: int) -> "RenderableType":
    from rich.text import Text

    from trimtab.cli.output import find_run
    from trimtab.journal import read_journal
    from trimtab.report.sparkline import marks, sparkline

    block = read_journal(find_run(run)).block
    room = min(width - _NAME_WIDTH, 100)
    lines = []
    for name in _CURVES:
        column = block.column(name)
        if column.recorded:
            lines.append(f"{name:<{_NAME_WIDTH}}{sparkline(column, room)}")
    twin = run.parent / truth["twin"] if truth["twin"] else None
    if twin is not None and (twin / "trimtab").exists():
        clean = read_journal(find_run(twin)).block
        lines.insert(1, f"{'  clean twin':<{_NAME_WIDTH}}{sparkline(clean.column('loss'), room)}")
    if truth["onset"] is not None:
        labels = [(truth["onset"], "^onset")]
        if truth["end"] is not None and truth["end"] < len(block):
            labels.append((truth["end"], "^end"))
        lines.append(" " * _NAME_WIDTH + marks(labels, len(block), room))
    return Text("\n".join(lines))


def _summary(truth: dict[str, Any]) -> str:
    """What was done to the run, in a few lines."""
    setting = truth["setting"]
    lines = [
        f"{truth['scenario']}: {setting['regime']}, learning rate {setting['lr']:g}, "
        f"{setting['batch_size']} windows of {setting['length']}, width {setting['width']}"
    ]
    if truth["onset"] is None:
        lines.append("a clean run, without any fault")
        return "\n".join(lines)
    until = "to the end" if truth["end"] is None else f"until step {truth['end']}"
    cause = truth["cause"] or ("fault" if truth["is_fault"] else "no fault")
    lines.append(f"{cause}: {truth['title']}, from step {truth['onset']} {until}")
    lines.append(
        f"severity {truth['severity']:.2f}: {truth['strength']:.4g} {truth['strength_is']}"
    )
    lines += [f"  {name}: {_short(fact)}" for name, fact in truth["facts"].items()]
    return "\n".join(lines)


def _short(fact: Any) -> str:
    text = str(fact)
    return text if len(text) <= 70 else text[:67] + "..."
