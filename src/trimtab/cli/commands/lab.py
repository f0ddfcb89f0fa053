"""`trimtab lab`: the reference trainer, the faults, runs with one in them, the labelled suite."""

import json
import operator
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.commands.lab_margins import margins
from trimtab.cli.commands.lab_practice import practice
from trimtab.cli.commands.lab_x1 import x1
from trimtab.cli.help import App
from trimtab.cli.options import Size, parse_settings
from trimtab.core.config import Mode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trimtab.lab.trainer.train_config import TrainConfig

_COUNTS = (
    *("batch_size", "length", "accumulate", "warmup_steps", "seed", "corpus_bytes"),
    *("checkpoint_steps", "eval_steps", "eval_batches"),
)
"""Settings that are whole numbers."""


def train(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run: journal and checkpoints.")],
    steps: Annotated[int, typer.Option(help="Steps of the run and of its schedule.", min=1)] = 300,
    size: Annotated[Size, typer.Option(help="Number of parameters; x1 has 50M.")] = Size.S10M,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other field of TrainConfig (docs/lab.md), for example dtype=fp16, lr=3e-3; "
            "may be repeated.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint, if there is one.")
    ] = False,
) -> None:
    """Train a GPT on the standard library's source, watched by trimtab.

    Under torchrun: torchrun --standalone --nproc_per_node=2 -m trimtab.cli lab train ...

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab train runs/first --size 1M --steps 200

    Exit code: 0 trained, 2 usage error, 3 the lab cannot do this here.
    """
    from trimtab.cli.progress import is_first_rank, training_progress
    from trimtab.lab.trainer.train import train as train_model

    config = make_config(size, steps, parse_settings(settings or ()))
    with training_progress(steps) as (on_text, on_step):
        outcome = train_model(config, run_dir, resume=resume, on_text=on_text, on_step=on_step)
    if is_first_rank():
        start = f" from step {outcome.first_step}" if outcome.first_step else ""
        typer.echo(f"trained to step {steps}{start}, held-out loss {outcome.eval_loss:.3f}")
        typer.echo(f"the run is in {run_dir}; to judge it: trimtab diagnose {run_dir}", err=True)


def make_config(size: str, steps: int, settings: dict[str, Any]) -> "TrainConfig":
    """Return the config of a run with these settings; raises ConfigError for one that is wrong."""
    from trimtab.core.errors import ConfigError
    from trimtab.lab.model.optimizer import OptimizerConfig
    from trimtab.lab.model.sizes import SIZES
    from trimtab.lab.trainer.train_config import Dtype, TrainConfig

    kinds: dict[str, Callable[[Any], Any]] = {
        "dtype": Dtype,
        "lr": float,
        "clip": float,
        "measure": _flag,
        **dict.fromkeys(_COUNTS, operator.index),
    }
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


def list_kinds() -> None:
    """List the faults, natural instabilities and hard negatives of the lab.

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab list

    Exit code: 0 printed, 2 usage error, 3 the extra is not installed.
    """
    from rich.console import Console
    from rich.table import Table

    from trimtab.lab.scenarios.catalogue import FAULTS, HARMLESS, NATURAL, describe_kind

    console = Console(highlight=False)
    for title, kinds in (
        ("Faults", FAULTS),
        ("Natural instabilities: caused by a setting alone", NATURAL),
        ("Hard negatives: they look like a fault and are not", HARMLESS),
    ):
        table = Table("name", "what it does", "severity 0 to 1", "lasts", "run", title=title)
        table.title_justify, table.box = "left", None
        for name, kind in kinds.items():
            row = describe_kind(kind)
            table.add_row(name, row.title, row.strengths, row.lasts, row.base)
        console.print(table)
        console.print()


_CURVES = ("loss", "grad_norm", "lr", "update_norm", "adam_v_norm", "loss_scale", "step_seconds")
_NAME_WIDTH = 14


def show(run: Annotated[Path, typer.Argument(help="A run of `lab run` or `lab suite`.")]) -> None:
    """Show the curves of a run with the fault marked, its clean twin, and what was done to it.

    `truth.json` in the run has the same for programs.

    Example: trimtab lab show runs/f02

    Exit code: 0 shown, 2 usage error, 3 not a run of the lab.
    """
    from rich.console import Console

    from trimtab.lab.scenarios.suite import read_truth

    console = Console(highlight=False)
    truth = read_truth(run)
    console.print(_curves(run, truth, console.width))
    console.print(_summary(truth))
    console.print(_held_against(run, truth))
    typer.echo(f"for trimtab's diagnosis: trimtab diagnose {run}", err=True)


def _held_against(run: Path, truth: dict[str, Any]) -> "RenderableType":
    """Return what the post-mortem of the worst incident says, beside what was done."""
    from rich.table import Table

    from trimtab.diagnosis import diagnose
    from trimtab.lab.practice.view import NONE, agree, write_up_of

    said = write_up_of(next(iter(diagnose(run).most_severe(1)), None))
    onset = truth["onset"] if truth["is_fault"] else None
    known = {
        "onset": NONE if onset is None else str(onset),
        "cause": truth["cause"] or NONE,
    }
    table = Table("", "post-mortem", "truth", "agree", box=None, pad_edge=False)
    for name, value in known.items():
        table.add_row(name, said[name], value, "yes" if agree(said[name], value) else "no")
    for name in ("class", "action"):
        table.add_row(name, said[name])
    return table


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


def run(
    kind: Annotated[str, typer.Argument(help="The fault, e.g. F02; see `lab list`.")],
    seed: Annotated[int, typer.Option(help="Determines settings, onset, severity.", min=0)] = 0,
    severity: Annotated[
        float | None,
        typer.Option(help="0 to 1.", min=0.0, max=1.0, show_default="drawn, a severe one"),
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="What trimtab does: observe the run, or protect the weights.")
    ] = Mode.OBSERVE,
    steps: Annotated[int, typer.Option(help="Length of the run.", min=20)] = 600,
    size: Annotated[
        Size | None,
        typer.Option(help="Number of parameters.", show_default="a small one, drawn by the seed"),
    ] = None,
    at: Annotated[
        int | None, typer.Option(help="Its first step.", min=1, show_default="drawn")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("lab"),
    twin: Annotated[bool, typer.Option(help="Also train the same run without the fault.")] = True,
) -> None:
    """Train a model with a fault in it, and show what happened.

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab run F02 --seed 3

    Exit code: 0 trained, 2 usage error, 3 the lab cannot do this here.
    """
    from trimtab.cli.progress import progress_bar
    from trimtab.lab.scenarios.scenario import Scenario
    from trimtab.lab.scenarios.suite import run_trial

    scenario = Scenario(
        kind=kind, seed=seed, steps=steps, severity=severity, mode=mode, size=size or "", at=at
    )
    scenarios = [scenario.twin(), scenario] if twin else [scenario]
    with progress_bar() as advance:
        total = steps * len(scenarios)
        for before, one in zip(range(0, total, steps), scenarios, strict=True):

            def on_step(done: int, loss: Any, before: int = before) -> None:
                advance("Training", before + done, total)

            run_dir = run_trial(one, out, on_step=on_step)
    show(run_dir)


def rl(
    fault: Annotated[str, typer.Argument(help="R01 to R12, or clean.")] = "R01",
    seed: Annotated[int, typer.Option(help="Determines settings and onset.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Length of the run.", min=60)] = 200,
    mode: Annotated[
        Mode, typer.Option(help="What trimtab does: observe the run, or protect the weights.")
    ] = Mode.OBSERVE,
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("lab"),
) -> None:
    """Train a small GPT to add by reinforcement learning (GRPO), with a fault in it.

    Takes half a minute to a minute on one core. `docs/rl.md` lists the faults.

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab rl R04 --seed 3

    Exit code: 0 trained, 2 usage error, 3 the lab cannot do this here.
    """
    from trimtab.lab.rl.grpo import run_rl

    run_dir = run_rl(fault, seed, out, steps=steps, mode=mode)
    truth = json.loads((run_dir / "truth.json").read_text(encoding="utf-8"))
    where = "" if truth["onset"] is None else f", from step {truth['onset']} on"
    typer.echo(f"{run_dir}: {truth['title']}{where}")
    typer.echo(f"for trimtab's diagnosis: trimtab diagnose {run_dir}", err=True)


def suite(
    out: Annotated[
        Path, typer.Argument(help="Folder of the suite; an unfinished suite is continued.")
    ],
    kinds: Annotated[
        str | None,
        typer.Option(help="Only these kinds, e.g. F02,cooldown. Default: all of `lab list`."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Only these seeds, e.g. 31,32. Default: 0 to 4; hard negatives 0 to 8."),
    ] = None,
    fast: Annotated[
        bool, typer.Option(help="Each fault once, in minutes; not with --kinds and --seeds.")
    ] = False,
) -> None:
    """Build the labelled runs that trimtab is measured on, or a part of them.

    Faults are built both mild and severe. Each run has its journal and a truth.json, and the clean
    twin of each run is built too. --kinds and --seeds choose runs; both are comma-separated lists.

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab suite suites/small

    Exit code: 0 built, 2 usage error, 3 the lab cannot do this here.
    """
    import time

    from trimtab.cli.progress import progress_bar

    if fast and (kinds is not None or seeds is not None):
        raise typer.BadParameter("--fast has a fixed choice of runs; leave out --kinds and --seeds")
    wanted_kinds, wanted_seeds = _names(kinds), _seeds(seeds)
    started = time.monotonic()
    from trimtab.lab.scenarios.suite import build_suite, fast_suite, make_suite

    scenarios = fast_suite() if fast else make_suite(wanted_kinds, wanted_seeds)
    with progress_bar() as progress:
        on_text, on_run = partial(progress, "Preparing text"), partial(progress, "Runs")
        num_trained = build_suite(scenarios, out, on_text=on_text, on_run=on_run)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    minutes = (time.monotonic() - started) / 60
    typer.echo(
        f"{len(scenarios)} runs in {out} ({size / 2**20:.0f} MB), {num_trained} of them trained "
        f"now in {minutes:.1f} minutes; to show one: trimtab lab show {out}/NAME"
    )


def _names(text: str | None) -> list[str] | None:
    """Return the items of a comma-separated list, each once; None if it was not given."""
    if text is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter(f"expected a comma-separated list, got {text!r}")
    return names


def _seeds(text: str | None) -> list[int] | None:
    names = _names(text)
    if names is None:
        return None
    if not all(name.isascii() and name.isdecimal() for name in names):
        raise typer.BadParameter(f"--seeds takes whole numbers such as 31,32, got {text!r}")
    return list(dict.fromkeys(map(int, names)))


lab_app = App(
    name="lab",
    help="Train a small GPT on real text, cause real faults in it, and practise handling them.",
    no_args_is_help=True,
    epilog="Example: trimtab lab practice",
)
lab_app.command()(train)
lab_app.command("list")(list_kinds)
lab_app.command()(run)
lab_app.command()(show)
lab_app.command()(rl)
lab_app.command()(suite)
lab_app.command()(practice)
lab_app.command()(x1)
lab_app.command()(margins)
