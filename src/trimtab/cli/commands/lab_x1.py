"""`trimtab lab x1`: the run of the stability guides, with a fault, and the commands that follow."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.options import Size
from trimtab.core.config import Mode

if TYPE_CHECKING:
    from trimtab.lab.scenarios.scenario import Scenario

_SECONDS = {Size.X1: 1800.0}
"""Time from one checkpoint to the next. Source: the guides save a run of a day every 30 minutes."""
_SHORT_SECONDS = 2.0
"""Chosen: several checkpoints in the minute that a small model trains."""


def x1(
    fault: Annotated[str, typer.Option(help="The fault, e.g. F02; see `lab list`.")] = "clean",
    at: Annotated[
        int | None, typer.Option(help="Its first step.", min=1, show_default="drawn")
    ] = None,
    size: Annotated[Size, typer.Option(help="Number of parameters; x1 has 50M.")] = Size.S015M,
    steps: Annotated[int, typer.Option(help="Length of the run.", min=20)] = 600,
    seed: Annotated[int, typer.Option(help="Determines weights, data, severity.", min=0)] = 0,
    severity: Annotated[
        float | None,
        typer.Option(help="0 to 1.", min=0.0, max=1.0, show_default="drawn, a severe one"),
    ] = None,
    mode: Annotated[Mode, typer.Option(help="What trimtab may do to the run.")] = Mode.OBSERVE,
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option(help="Time between checkpoints.", min=0.1, show_default="x1 1800, else 2"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run and its twin.")] = Path("x1"),
    twin: Annotated[bool, typer.Option(help="Also train the same run without the fault.")] = True,
    recover: Annotated[
        int | None,
        typer.Option(
            metavar="STEP",
            help="Train on from the newest good checkpoint up to STEP, without the fault.",
            min=1,
        ),
    ] = None,
) -> None:
    """Train the run of the stability guides with a fault in it, and print how to work it off.

    bf16, AdamW, clip 1.0, beta2 0.95, decay 0.1, warm-up and cosine; all signals every ten steps,
    held-out loss, checkpoints by the clock with a verdict each. Without a terminal a line every ten
    steps says how far it is.

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab x1 --fault F02 --at 300

    Exit code: 0 trained, 2 usage error, 3 the lab cannot do this here.
    """
    from trimtab.cli.progress import training_progress
    from trimtab.core.errors import ConfigError
    from trimtab.lab.scenarios.scenario import Scenario
    from trimtab.lab.scenarios.suite import is_trained, relaunch, run_trial

    scenario = Scenario(
        kind=fault,
        seed=seed,
        steps=steps,
        severity=severity,
        mode=mode,
        size=size,
        at=at,
        checkpoint_seconds=checkpoint_seconds or _SECONDS.get(size, _SHORT_SECONDS),
    )
    run_dir = out / scenario.name
    if recover is not None:
        with training_progress(steps) as (_, on_step):
            outcome = relaunch(scenario, out, before=recover, on_step=on_step)
        typer.echo(
            f"trained on from step {outcome.first_step} to {steps}, held-out loss "
            f"{outcome.eval_loss:.3f}; {run_dir}"
        )
        return
    if run_dir.exists() and not is_trained(scenario, out):
        raise ConfigError(
            f"{run_dir} is a run that did not end, or has other settings; give --recover {steps} "
            "to train on from its newest good checkpoint, or another --out"
        )
    has_twin = twin and scenario.intervention() is not None
    for one in [scenario.twin(), scenario] if has_twin else [scenario]:
        typer.echo(f"{out / one.name}: {steps} steps", err=True)
        with training_progress(steps) as (_, on_step):
            run_trial(one, out, on_step=on_step)
    for line in _tasks(scenario, out, has_twin=has_twin):
        typer.echo(line)


def _tasks(scenario: "Scenario", out: Path, *, has_twin: bool) -> list[str]:
    """List the commands with which the run is worked off, with the numbers of this run."""
    import trimtab
    from trimtab.journal.directory import incident_folder_name
    from trimtab.lab.scenarios.scenario import Scenario
    from trimtab.report.postmortem import VERIFY_FILE

    run_dir = out / scenario.name
    report = trimtab.diagnose(run_dir)
    lines = [report.verdict, "", "diagnose", _command("diagnose", run_dir, "--write")]
    lines += [_command("checkpoints", run_dir)]
    worst = next(iter(report.most_severe(1)), None)
    onset = scenario.onset if worst is None else worst.incident.onset.step
    usual = Scenario(kind=scenario.kind, seed=0, size=Size.S015M)
    names = ("at", "size", "steps", "seed", "severity", "mode")
    pairs = {name: (getattr(scenario, name), getattr(usual, name)) for name in names}
    given = [f"--{name}={value}" for name, (value, usually) in pairs.items() if value != usually]
    again = [f"--fault={scenario.kind}", *given, f"--out={out}", f"--recover={onset}"]
    if worst is not None:
        lines += ["recover", _command("lab", "x1", *again)]
    if has_twin:
        twin = out / scenario.twin().name
        lines += ["verify", _command("compare", run_dir, twin)]
        if worst is not None:
            folder = incident_folder_name(worst.incident.number, onset)
            path = run_dir / "trimtab" / "incidents" / folder / VERIFY_FILE
            lines += [_command("compare", twin, run_dir, "--verify", path)]
    return [*lines, "post-mortem, held against the truth", _command("lab", "show", run_dir)]


def _command(*words: object) -> str:
    return "  trimtab " + shlex.join(map(str, words))
