"""`trimtab lab margins`: what happens to a small GPT without one or two of its safeguards."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer


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

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab margins --minutes 20

    Exit code: 0 shown, 2 usage error, 3 the lab cannot do this here.
    """
    from rich.console import Console
    from rich.table import Table

    from trimtab.cli.progress import progress_bar
    from trimtab.lab import margins as grid
    from trimtab.lab.corpus.tokens import prepare_corpus

    corpus = prepare_corpus(grid.CORPUS)
    with progress_bar() as progress:
        grid.train_grid(out, corpus, seeds, 60 * minutes, partial(progress, "Training"))
    found = grid.margins(grid.read_losses(out), corpus)
    table = Table("left out", *(f"rate {lr:g}" for lr in grid.RATES), box=None, pad_edge=False)
    for one in grid.LEFT_OUT:
        table.add_row(
            " and ".join(one) or "nothing", *(str(found.get((one, lr), "")) for lr in grid.RATES)
        )
    console = Console(highlight=False)
    console.print("runs that failed, of those trained; mean held-out loss where finite")
    console.print(table)
