"""Which run of a file that holds several is meant."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.quoting import listed, printable, quoted
from trimtab.readers.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run in a file."""

    id: str
    name: str


def choose_run(path: Path, runs: Sequence[StoredRun], wanted: str | None) -> StoredRun:
    """The run with the wanted name or id, else the first; raises UnreadableLog if there is none."""
    if not runs:
        raise UnreadableLog(f"{path} holds no run; check that anything was logged to it")
    if wanted is None:
        return runs[0]
    for run in runs:
        if wanted in (run.id, run.name):
            return run
    names = listed([printable(run.name or run.id) for run in runs])
    raise UnreadableLog(f"{path} has no run {quoted(wanted)}; its runs: {names}")


def note_choice(table: Table, run: StoredRun, runs: Sequence[StoredRun]) -> None:
    """Say which run was read, if there are others."""
    others = [printable(other.name or other.id) for other in runs if other != run]
    if others:
        table.add_note(
            f"Of {len(runs)} runs in the file, {quoted(printable(run.name or run.id))} is read; "
            f"to read a different one, append # and its name to the file: {listed(others)}."
        )
