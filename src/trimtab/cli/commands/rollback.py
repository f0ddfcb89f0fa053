"""`trimtab rollback`: ask the next launch of a run to go on from an earlier checkpoint."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.options import ExitCode

if TYPE_CHECKING:
    from trimtab.core.block import Block
    from trimtab.journal import RunDirectory
    from trimtab.journal.checkpoints.index import CheckpointEntry, CheckpointIndex


def rollback(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    to: Annotated[
        int | None,
        typer.Option(min=0, help="The newest checkpoint up to this step. Default: the verdict's."),
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Leave out the data of the steps A to B - 1."),
    ] = None,
    lr_factor: Annotated[
        float | None, typer.Option(help="Multiply the learning rate by this, at most 1.")
    ] = None,
    without_source: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A source of data to leave out.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also to a bad checkpoint.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Ask the next launch of a run to go on from a checkpoint, after showing the price.

    A launch that resumes by `checkpoints.resume()` or `last_good_checkpoint(...)` loads it; any
    other one says which path to load. What is left out or lowered stays so in later launches, and
    in later rollbacks that do not say otherwise: `--lr-factor 1` ends a lower rate.

    Example: trimtab rollback runs/x1 --to 1200 --skip 1410:1430 --lr-factor 0.5

    Exit code: 0 asked for, 1 not after all, 2 usage error, 3 there is no such checkpoint.
    """
    from trimtab.cli.output import find_run
    from trimtab.core.errors import ConfigError, RestoreError
    from trimtab.core.text import printable
    from trimtab.journal import read_journal
    from trimtab.journal.checkpoints.index import CheckpointIndex
    from trimtab.journal.rollback import Conditions, Rollback, digest_of
    from trimtab.observe.run_observer import judge_from_journal

    directory = find_run(run)
    index = CheckpointIndex(directory.home)
    index.entries = judge_from_journal(directory, index.entries)  # in memory alone
    block, before = read_journal(directory).block, None
    last = max([0, *(one.step for one in index.entries), *(block.step[-1:] + 1)])
    if to is not None and to > last:
        raise RestoreError(f"the run has not come to step {to:,}: its next one is {last:,}")
    entry = _choose(index, _step_of_verdict(directory) if to is None else to, anyway=anyway)
    try:
        before = Rollback.read(directory.home)
    except RestoreError as error:
        typer.echo(printable(f"trimtab: {error}"), err=True)
    earlier = Conditions() if before is None else before.in_force
    bad_data = {} if skip is None else _data_of(block, skip, entry.step)
    try:
        conditions = Conditions(
            lr_factor=earlier.lr_factor if lr_factor is None else lr_factor,
            without_sources=tuple(without_source or earlier.without_sources),
            bad_data=tuple(sorted({**dict(earlier.bad_data), **bad_data}.items())),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    request = Rollback(
        step=entry.step,
        checkpoint=entry.folder,
        digest=digest_of(index, entry),
        anyway=anyway,
        conditions=conditions,
        earlier=earlier,
    )
    typer.echo(f"Back to step {entry.step:,}: {entry.folder}, {entry.verdict}")
    num_left_out, factor = len(conditions.bad_data), conditions.lr_factor
    for name, value, is_shown in (
        ("because", entry.reason, True),
        ("lost", _price(block, entry), True),
        ("data", f"that of {num_left_out:,} steps is left out: they are discarded", num_left_out),
        ("rate", f"{factor:g} times that of the schedule", factor != 1.0),
        ("sources", f"without {', '.join(conditions.without_sources)}", conditions.without_sources),
    ):
        if is_shown:
            typer.echo(printable(f"  {name:9}{value}"))
    if not yes and not typer.confirm("Ask for it?"):
        raise typer.Exit(ExitCode.FINDINGS)
    request.write(directory.home)
    typer.echo("The next launch takes it; a run that is under way goes on until you stop it.")


def _step_of_verdict(run: "RunDirectory") -> int:
    """Return the step of the checkpoint that the verdict on a run names."""
    from trimtab.core.actions import ActionKind
    from trimtab.core.errors import ConfigError
    from trimtab.diagnosis import diagnose

    report = diagnose(run.root)
    steps = {name: step for step, name in report.facts.checkpoints.items()}
    for found in report.by_severity():
        if found.action.kind is not ActionKind.WAIT and found.checkpoint in steps:
            return steps[found.checkpoint]
    raise ConfigError(f"the verdict names no checkpoint; name a step with --to: {report.verdict}")


def _choose(index: "CheckpointIndex", to: int, *, anyway: bool) -> "CheckpointEntry":
    """Return the newest checkpoint up to a step; raises RestoreError if it may not be loaded."""
    from trimtab.core.errors import RestoreError
    from trimtab.journal.checkpoints.index import Verdict
    from trimtab.journal.checkpoints.manifest import find_damage

    # A Trainer's checkpoint-100 goes on with step 101, and is asked for as 100.
    last = to if any(one.step == to for one in index.entries) else to + 1
    older = sorted(
        (one for one in index.entries if one.step <= last),
        key=lambda one: (one.step, one.facts.serial),
    )
    if not older:
        known = ", ".join(f"{one.step:,}" for one in index.entries)
        raise RestoreError(
            f"no checkpoint is from step {to:,} or before; there are: {known}"
            if known
            else "no checkpoint of this run is known; `watch(..., checkpoints=...)` records them"
        )
    if older[-1].verdict is Verdict.BAD and not anyway:
        sound = [one.step for one in older if one.verdict is not Verdict.BAD]
        raise RestoreError(
            f"the checkpoint of step {older[-1].step:,} is bad: {older[-1].reason}\n"
            f"hint: {f'--to {sound[-1]} is sound; ' * bool(sound)}--anyway takes it all the same"
        )
    folder, manifest = index.read_files(older[-1])
    if damage := find_damage(folder, manifest, manifest.files):
        raise RestoreError(f"the checkpoint of step {older[-1].step:,} is damaged: {damage[0]}")
    return older[-1]


def _data_of(block: "Block", skip: str, first: int) -> dict[int, float | None]:
    """Return the data positions of some steps, with fingerprints; raises ConfigError."""
    import numpy as np

    from trimtab.core.block import NO_POSITION
    from trimtab.core.errors import ConfigError
    from trimtab.core.signals import FINGERPRINT

    found = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", skip)
    start, end = (int(found[1]), int(found[2])) if found else (0, 0)
    if not first < end or not start < end:
        raise ConfigError(f"--skip takes A:B, steps with A before B after {first:,}: {skip!r:.40}")
    is_named = (block.step >= start) & (block.step < end) & (block.data_position != NO_POSITION)
    rows = {int(block.step[row]): row for row in np.flatnonzero(is_named)}  # the last attempt's
    if not rows:
        raise ConfigError(
            f"the journal does not say which data the steps {skip} had: it does in a loop over "
            "guard.steps(loader), and in a trainer with trimtab's callback"
        )
    marks = block.column(FINGERPRINT)
    return {
        int(block.data_position[row]): float(marks.values[row]) if marks.finite[row] else None
        for row in rows.values()
    }


def _price(block: "Block", entry: "CheckpointEntry") -> str:
    """Return what is trained in vain, in words."""
    from trimtab.core.signals import STEP_SECONDS
    from trimtab.core.text import counted

    is_lost = (block.attempt == block.attempt.max(initial=0)) & (block.step >= entry.step)
    seconds = block.column(STEP_SECONDS)
    timed = seconds.values[is_lost & seconds.finite]
    hours = f", {timed.sum() / 3600:.2g} hours" if len(timed) else ""
    return f"{counted(int(is_lost.sum()), 'update')}{hours}"
