"""`trimtab lab train`: the reference trainer."""

import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.options import parse_settings

if TYPE_CHECKING:
    from trimtab.lab.trainer.train_config import TrainConfig

_LOSS_SECONDS = 0.2
"""Interval between updates of the displayed loss: reading it synchronizes with the device."""

_COUNTS = (
    *("batch_size", "length", "accumulate", "warmup_steps", "seed", "corpus_bytes"),
    *("checkpoint_steps", "eval_steps", "eval_batches"),
)
"""Settings that are whole numbers."""


# The lab has them as a table too, but importing it imports torch, and `--help` must not wait.
class Size(StrEnum):
    """Named sizes."""

    S015M = "0.15M"
    S1M = "1M"
    S3M = "3M"
    S10M = "10M"
    X1 = "x1"


def train(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run: journal and checkpoints.")],
    steps: Annotated[int, typer.Option(help="Steps of the run and of its schedule.", min=1)] = 300,
    size: Annotated[Size, typer.Option(help="Number of parameters; x1 has 50M.")] = Size.S10M,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other field of TrainConfig (docs/lab.md), for example dtype=fp16, lr=3e-3, "
            "engine=fsdp2; may be repeated.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint, if there is one.")
    ] = False,
) -> None:
    """Train a GPT on the standard library's source, watched by trimtab.

    Under torchrun: torchrun --standalone --nproc_per_node=2 -m trimtab.cli lab train ...

    Needs the `lab` extra of trimtab: torch, tokenizers and torchdata.

    Exit code: 0 trained, 2 usage error, 3 the lab cannot do this here.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from trimtab.cli import output

    with output.reported_errors():
        from trimtab.lab.trainer.train import train as train_model

        config = make_config(size, steps, parse_settings(settings or ()))
        with _progress(steps) as (on_text, on_step):
            outcome = train_model(config, run_dir, resume=resume, on_text=on_text, on_step=on_step)
    if _is_first_rank():
        start = f" from step {outcome.first_step}" if outcome.first_step else ""
        typer.echo(f"trained to step {steps}{start}, held-out loss {outcome.eval_loss:.3f}")
        typer.echo(f"the run is in {run_dir}; to judge it: trimtab diagnose {run_dir}", err=True)


def make_config(size: str, steps: int, settings: dict[str, Any]) -> "TrainConfig":
    """Return the config of a run with these settings; raises ConfigError for one that is wrong."""
    from trimtab.core.errors import ConfigError
    from trimtab.lab.model.optimizer import OptimizerConfig
    from trimtab.lab.model.sizes import SIZES
    from trimtab.lab.trainer.train_config import Dtype, Engine, TrainConfig

    kinds: dict[str, Callable[[Any], Any]] = {
        "dtype": Dtype,
        "engine": Engine,
        "lr": float,
        "clip": float,
        "measure": _flag,
        **dict.fromkeys(_COUNTS, operator.index),
    }
    if "WORLD_SIZE" in os.environ:  # torchrun sets it
        settings = {"engine": Engine.DDP, **settings}
    given: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in kinds:
            raise ConfigError(f"there is no setting {name!r}; choose from {', '.join(kinds)}")
        try:
            given[name] = kinds[name](value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"--set {name}={value} cannot be right: {error}") from error
    if "lr" in given:
        given["optimizer"] = OptimizerConfig(lr=given.pop("lr"))
    return TrainConfig(model=SIZES[size], steps=steps, **given)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("give true or false")
    return value


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def _progress(
    steps: int,
) -> Iterator[tuple[Callable[[int, int], None], Callable[[int, Any], None]]]:
    """Draw a progress bar with the loss, on standard error of the first rank, in a terminal."""
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
