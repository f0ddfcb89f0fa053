"""`trimtab probe`: which experiment would find out more about an incident, and how to make it."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.options import AsJson, print_json


def probe(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    incident: Annotated[int, typer.Option(help="The number of the incident.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show what experiments have found out about an incident, and the next one worth making.

    A run in `recover` makes experiments by itself if `probes.enabled` is set. For all others this
    prints where a replay begins, which batches it needs, and the code for it. Nothing is written.

    Exit code: 0 printed, 2 usage error, 3 unreadable.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli.output import find_run, reported_errors
    from trimtab.probes.plan import replay
    from trimtab.report.escaping import printable

    with reported_errors():
        plan = replay(find_run(run).root, incident)
    if as_json:
        shown = {
            **{name: getattr(plan, name) for name in ("incident", "step", "last_step", "answers")},
            **{name: getattr(plan, name) for name in ("proposal", "checkpoint", "first_step")},
            "run": str(run),
            "first_position": plan.positions.start,
            "last_position": plan.positions.stop - 1,
        }
        print_json("probe", shown)
        return
    lines = [f"Incident {plan.incident}, steps {plan.step} to {plan.last_step}"]
    lines += [f"  verified by experiment ({name}): {text}" for name, text in plan.answers.items()]
    if plan.proposal is None:
        lines.append("  no further experiment would separate its causes")
    else:
        lines.append(f"  next: {plan.proposal.experiment}, because {plan.proposal.reason}")
    start = "the beginning" if plan.checkpoint is None else str(plan.checkpoint)
    lines += [
        f"  replay: from {start} (step {plan.first_step}), data positions "
        f"{plan.positions.start} to {plan.positions.stop - 1}",
        "",
        f"    plan = trimtab.replay({str(run)!r}, incident={plan.incident})",
        "    checkpoints.resume(before=plan.step)",
        "    with plan.looking_for_nonfinite(model) as found:",
        "        ...  # the steps from plan.first_step on, with the batches of plan.positions",
    ]
    for line in lines:
        typer.echo(printable(line))
