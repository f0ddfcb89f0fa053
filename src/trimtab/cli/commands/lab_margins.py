"""`trimtab lab margins`: what happens to a small GPT without one or two of its safeguards."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.lab.margins import Margin


def margins(
    out: Annotated[Path, typer.Option(help="File of the results; an unfinished one goes on.")] = (
        Path("margins.jsonl")
    ),
    minutes: Annotated[float, typer.Option(help="Time for training.", min=0)] = 45.0,
    seeds: Annotated[int, typer.Option(help="Runs of each cell.", min=1)] = 3,
) -> None:
    """Leave out each safeguard of a small GPT, alone and in pairs, and show which runs fail.

    Clipping, warm-up, beta2, pre-norm, weight decay, bf16, QK-norm; 29 sets at three learning
    rates. One seed of all takes about a quarter of an hour on one core; the same command goes on.

    Needs the `lab` extra of trimtab: torch, tokenizers and torchdata.

    Example: trimtab lab margins --minutes 20

    Exit code: 0 shown, 2 usage error, 3 the lab cannot do this here.
    """
    from rich.console import Console

    from trimtab.cli.progress import progress_bar
    from trimtab.lab.margins import grid_corpus, read_losses, train_grid
    from trimtab.lab.margins import margins as summarize

    corpus = grid_corpus()
    with progress_bar() as progress:
        on_cell = partial(progress, "Training")
        train_grid(out, corpus, seeds, 60 * minutes, on_cell)
    console = Console(highlight=False)
    console.print(_table(summarize(read_losses(out), corpus)))


def _table(found: "Sequence[Margin]") -> "Table":
    """Return a row for each set, with the seeds that failed at each learning rate."""
    from rich.table import Table

    from trimtab.lab.margins import RATES, left_out_sets

    table = Table("left out", box=None, pad_edge=False)
    table.title = "runs that failed, of those trained; mean held-out loss where finite"
    table.title_justify = "left"
    for lr in RATES:
        table.add_column(f"{lr:g}", justify="right")
    by_place = {(one.left_out, one.lr): one for one in found}
    for left_out in left_out_sets():
        shown = [by_place.get((left_out, lr)) for lr in RATES]
        cells = ["" if one is None else one.text for one in shown]
        table.add_row(" and ".join(left_out) or "nothing", *cells)
    return table
