"""`trimtab checkpoints`: the checkpoints of a run, which can be trusted, and what two differ in."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.help import Group
from trimtab.cli.options import AsJson, ExitCode, print_json

if TYPE_CHECKING:
    from trimtab.journal import RunDirectory
    from trimtab.journal.checkpoints.index import CheckpointEntry, CheckpointIndex

NEXT = "give the run_dir of a run with `watch(checkpoints=...)`"


class CheckpointCommands(Group):
    """The commands on checkpoints; a run directory in their place is listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what names no command for what `list` is given."""
        is_named = not args or args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else ["list", *args])


COLUMNS = ("step", "verdict", "files", "size", "why")


def checkpoints(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    verify: Annotated[
        bool, typer.Option(help="Read every file and compare its checksum; may take a while.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """List a run's checkpoints: step, verdict, whether the files are as written, size, why.

    Verdicts are those that follow from the journal as it is now. Nothing is written, and no file
    of a checkpoint is opened as anything but bytes.

    Example: trimtab checkpoints runs/x1

    Exit code: 0 all are good, 1 some are bad or damaged, 2 usage error, 3 no checkpoints.
    """
    from trimtab.core.errors import RestoreError
    from trimtab.core.text import printable
    from trimtab.journal.checkpoints.index import CheckpointIndex, Verdict
    from trimtab.observe.run_observer import judge_from_journal

    directory = _find(run)
    index = CheckpointIndex(directory.home)
    if not index.entries:
        raise RestoreError(f"{run} has no checkpoints yet; {NEXT}")
    entries = [_verify(index, entry) if verify else entry for entry in index.entries]
    entries = judge_from_journal(directory, entries)
    if index.problem:
        typer.echo(f"trimtab: {printable(index.problem)}; listed by folder", err=True)
    index.entries = entries  # in memory alone: the command writes nothing
    best = next(iter(index.candidates()), None)
    if as_json:
        print_json("checkpoints", _as_dict(run, entries, best, is_verified=verify))
    else:
        _print(entries, best, is_verified=verify)
    is_bad = any(entry.verdict is Verdict.BAD for entry in entries)
    raise typer.Exit(ExitCode.FINDINGS if is_bad else ExitCode.CLEAN)


def same(
    one: Annotated[Path, typer.Argument(help="A checkpoint: a folder or a file.")],
    other: Annotated[Path, typer.Argument(help="Another one, of any format and number of ranks.")],
    weights: Annotated[bool, typer.Option("--weights", help="Compare the weights alone.")] = False,
) -> None:
    """Say whether two checkpoints hold the same state, bit for bit, and if not, what differs.

    Reads torch.distributed.checkpoint, safetensors, torch.save, folders of HF's Trainer and
    DeepSpeed's universal checkpoints, one tensor at a time, and unpickles nothing. Compared are
    weights, moments, step counts, options, schedule, scaler, step and data position.

    Example: trimtab checkpoints same runs/x1/trimtab/checkpoints/step-00000800 export/

    Exit code: 0 they are the same, 1 they differ, 2 usage error, 3 one cannot be read.
    """
    from trimtab.core.errors import MissingExtra, RestoreError
    from trimtab.core.text import printable

    try:
        from trimtab.state.checkpoints.logical_state import LogicalState
    except ModuleNotFoundError as error:
        raise MissingExtra.of("trimtab checkpoints same needs torch", "torch") from error
    states = [LogicalState.read(path) for path in (one, other)]
    found = states[0].differences(states[1])
    if weights:
        if not any(name.startswith("weights.") for state in states for name in state.entries):
            raise RestoreError("neither checkpoint holds weights, so nothing was compared")
        found = {name: pair for name, pair in found.items() if name.startswith("weights.")}
    for name, pair in found.items():
        first, second = (str(entry or "missing") for entry in pair)
        typer.echo(printable(f"{name}: {first} / {second}"))
    counts = " and ".join(f"{len(state.entries):,}" for state in states)
    typer.echo(f"{f'{len(found):,} differ' if found else 'the same'}: {counts} entries read")
    if left_out := sorted(states[0].left_out | states[1].left_out):
        typer.echo(printable(f"not compared: {', '.join(left_out)}"))
    raise typer.Exit(ExitCode.FINDINGS if found else ExitCode.CLEAN)


def _find(path: Path) -> "RunDirectory":
    """Return the run directory at a path; one without a journal may have checkpoints too."""
    from trimtab.core.errors import RestoreError
    from trimtab.journal import RunDirectory
    from trimtab.journal.checkpoints.index import FOLDER, INDEX

    for run in (RunDirectory(path), RunDirectory(path.absolute().parent)):
        with contextlib.suppress(OSError):  # a link, which is not followed
            if run.folder(FOLDER).is_dir() or (run.home / INDEX).exists():
                return run
    raise RestoreError(f"{path} is not a run directory with checkpoints; {NEXT}")


def _verify(index: "CheckpointIndex", entry: "CheckpointEntry") -> "CheckpointEntry":
    import dataclasses

    from trimtab.core.errors import RestoreError
    from trimtab.journal.checkpoints.manifest import find_damage

    try:
        folder, manifest = index.read_files(entry)
        damage = find_damage(folder, manifest, manifest.files)
    except RestoreError as error:
        damage = [str(error)]
    return dataclasses.replace(entry, damage=damage[0] if damage else "")


def _print(
    entries: "list[CheckpointEntry]", best: "CheckpointEntry | None", *, is_verified: bool
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from trimtab.core.text import printable

    table = Table(*COLUMNS, box=None, pad_edge=False)
    table.columns[0].justify = table.columns[3].justify = "right"
    for entry in entries:
        row = (
            f"{entry.step:,}",
            entry.verdict.value,
            _files(entry, is_verified=is_verified),
            f"{entry.facts.num_bytes / 1e6:,.1f} MB",
            printable(entry.reason),
        )
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    console.print(table)
    if best is None:
        console.print("No checkpoint can be resumed from.")
    else:
        console.print(Text(f"A run that resumes loads {printable(best.folder)}."))


def _files(entry: "CheckpointEntry", *, is_verified: bool) -> str:
    if entry.damage:
        return "damaged"
    return "verified" if is_verified else "not verified"


def _as_dict(
    run: Path,
    entries: "list[CheckpointEntry]",
    best: "CheckpointEntry | None",
    *,
    is_verified: bool,
) -> dict[str, Any]:
    from trimtab.core.jsonable import to_jsonable

    rows: list[dict[str, Any]] = [
        {
            **to_jsonable(entry.facts),
            "folder": entry.folder,
            "verdict": entry.verdict.value,
            "files": _files(entry, is_verified=is_verified),
            "in_doubt": entry.in_doubt,
            "reason": entry.reason,
        }
        for entry in entries
    ]
    return {
        "run": str(run),
        "checkpoints": rows,
        "resumes_from": None if best is None else best.folder,
    }
