"""`trimtab lab train`: the reference trainer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from trimtab.lab.trainer.train_config import TrainConfig

_LOSS_SECONDS = 0.2
"""Interval between updates of the displayed loss: reading it synchronizes with the device."""


# The lab has these as enums too, but importing them imports torch, and `--help` must not wait.
class Size(StrEnum):
    """Named sizes."""

    S015M = "0.15M"
    S1M = "1M"
    S3M = "3M"
    S10M = "10M"
    X1 = "x1"


class DtypeName(StrEnum):
    """Precision regimes."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class EngineName(StrEnum):
    """How the model is distributed over ranks."""

    ALONE = "alone"
    DDP = "ddp"
    FSDP2 = "fsdp2"
    HSDP = "hsdp"


def train(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run: journal and checkpoints.")],
    steps: Annotated[int, typer.Option(help="Steps of the run and of its schedule.", min=1)],
    size: Annotated[Size, typer.Option(help="Number of parameters; x1 has 50M.")] = Size.S10M,
    dtype: Annotated[
        DtypeName, typer.Option(help="Dtype of matrix products; weights stay in fp32.")
    ] = DtypeName.BF16,
    engine: Annotated[
        EngineName | None, typer.Option(help="Default: alone, or ddp under torchrun.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Windows per step, over all ranks and micro-batches.", min=1)
    ] = 8,
    length: Annotated[int, typer.Option(help="Tokens per window.", min=1)] = 128,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per step.", min=1)] = 1,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    warmup_steps: Annotated[
        int | None, typer.Option(help="Default: 2,000, or a tenth of a shorter run.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initial weights and data order.", min=0)] = 0,
    corpus_bytes: Annotated[
        int, typer.Option(help="Maximum text to tokenize; the default is all of it.", min=1)
    ] = 2**25,
    checkpoint_steps: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 100,
    eval_steps: Annotated[int, typer.Option(help="Steps between evaluations.", min=1)] = 100,
    measure: Annotated[
        bool, typer.Option(help="Also record the largest attention logit, log Z and token loss.")
    ] = False,
    resume: Annotated[
        bool, typer.Option(help="Continue from the newest checkpoint, if there is one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a GPT on the standard library's source, watched by trimtab.

    Under torchrun: torchrun --standalone --nproc_per_node=2 -m trimtab.cli lab train ...

    Needs the `lab` extra of trimtab: torch, tokenizers and torchdata.

    Exit code: 0 trained, 2 usage error, 3 the lab cannot do this here.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from trimtab.cli import output

    chosen = engine or (EngineName.DDP if "WORLD_SIZE" in os.environ else EngineName.ALONE)
    settings = {
        "steps": steps,
        "batch_size": batch_size,
        "length": length,
        "accumulate": accumulate,
        "warmup_steps": warmup_steps,
        "seed": seed,
        "corpus_bytes": corpus_bytes,
        "checkpoint_steps": checkpoint_steps,
        "eval_steps": eval_steps,
        "measure": measure,
    }
    with output.reported_errors():
        from trimtab.lab.trainer.train import train as train_model

        config = _config(size, dtype, chosen, lr, settings)
        with _progress(steps) as (on_text, on_step):
            outcome = train_model(config, run_dir, resume=resume, on_text=on_text, on_step=on_step)
    if _is_first_rank() and as_json:
        shown = {
            "run": run_dir,
            "steps": steps,
            "first_step": outcome.first_step,
            "held_out_loss": outcome.eval_loss,
        }
        print_json("lab train", shown)
    elif _is_first_rank():
        start = f" from step {outcome.first_step}" if outcome.first_step else ""
        typer.echo(f"trained to step {steps}{start}, held-out loss {outcome.eval_loss:.3f}")
        typer.echo(f"the run is in {run_dir}; to judge it: trimtab diagnose {run_dir}", err=True)


def _config(
    size: Size, dtype: DtypeName, engine: EngineName, lr: float, settings: dict[str, Any]
) -> "TrainConfig":
    from trimtab.lab.model.optimizer import OptimizerConfig
    from trimtab.lab.model.sizes import SIZES
    from trimtab.lab.trainer.train_config import Dtype, Engine, TrainConfig

    return TrainConfig(
        model=SIZES[size],
        optimizer=OptimizerConfig(lr=lr),
        dtype=Dtype(dtype),
        engine=Engine(engine),
        **settings,
    )


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def _progress(
    steps: int,
) -> Iterator[tuple[Callable[[int, int], None], Callable[[int, Any], None]]]:
    """A progress bar with the loss, on standard error of the first rank if it is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from trimtab.cli.progress import shows_progress

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (_is_first_rank() and shows_progress(console)),
    )
    task = bar.add_task("preparing text", total=None)
    last_read = 0.0

    def on_text(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    def on_step(done: int, loss: Any) -> None:
        nonlocal last_read
        if bar.disable:
            return
        if bar.get_time() - last_read > _LOSS_SECONDS:
            last_read = bar.get_time()
            bar.update(task, description=f"loss {loss.item():.3f}")
        bar.update(task, completed=done, total=steps)

    with bar:
        yield on_text, on_step
