"""`trimtab lab run`: train one run with a fault in it."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.json_output import AsJson
from trimtab.cli.progress import Advance
from trimtab.core.config import Mode


# The lab has this as an enum too, but importing it imports torch, and `--help` must not wait.
class GradeName(StrEnum):
    """How severe the fault is."""

    MILD = "mild"
    SEVERE = "severe"


def run(
    kind: Annotated[str, typer.Argument(help="The fault, e.g. F02; see `lab list`.")],
    seed: Annotated[int, typer.Option(help="Determines settings, onset, severity.", min=0)] = 0,
    grade: Annotated[GradeName, typer.Option(help="Range to draw the severity from.")] = (
        GradeName.SEVERE
    ),
    severity: Annotated[
        float | None, typer.Option(help="0 to 1, instead of drawing it.", min=0.0, max=1.0)
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="What trimtab does: observe the run, or protect the weights.")
    ] = Mode.OBSERVE,
    steps: Annotated[int, typer.Option(help="Length of the run.", min=20)] = 600,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("lab"),
    twin: Annotated[bool, typer.Option(help="Also train the same run without the fault.")] = True,
    as_json: AsJson = False,
) -> None:
    """Train a small model with a fault in it, and show what happened.

    Needs the `lab` extra of trimtab: torch, tokenizers and torchdata.

    Exit code: 0 trained, 2 usage error, 3 the lab cannot do this here.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from trimtab.cli import output
    from trimtab.cli.lab.show import print_trial
    from trimtab.cli.progress import progress_bar

    with output.reported_errors():
        from trimtab.lab.scenarios.scenario import Grade, Scenario
        from trimtab.lab.scenarios.suite import run_trial

        scenario = Scenario(
            kind=kind, seed=seed, grade=Grade(grade), steps=steps, severity=severity, mode=mode
        )
        scenarios = [scenario.twin(), scenario] if twin else [scenario]
        with progress_bar() as advance:
            total = steps * len(scenarios)
            for before, one in zip(range(0, total, steps), scenarios, strict=True):
                on_step = partial(_advance, advance, before, total)
                run_dir = run_trial(one, out, on_step=on_step)
    print_trial(run_dir, as_json="lab run" if as_json else None)


def _advance(advance: Advance, before: int, total: int, done: int) -> None:
    advance("Training", before + done, total)
