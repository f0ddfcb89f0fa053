"""checkpoints.json: the checkpoints of a run and the verdict on each."""

import dataclasses
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from trimtab.core.errors import RestoreError

INDEX = "checkpoints.json"

PROVEN_AFTER_STEPS = 100
"""Steps without an incident that reaches back to a checkpoint, after which it is proven. Source: a
recoverable incident is back within 100 steps, and 32 records later it is known."""


class Verdict(StrEnum):
    """What is known of a checkpoint."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One checkpoint of a run."""

    step: int
    """The step that comes next from it."""
    folder: str
    """Where it is; relative to the run directory if it is inside."""
    data_position: int
    """Position of the next batch."""
    attempt: int
    world: int
    """Ranks that wrote it."""
    num_bytes: int
    verdict: Verdict
    reason: str
    """Why the verdict is what it is, in one sentence."""


class CheckpointIndex:
    """The entries, oldest first; every change is on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[CheckpointEntry] = _read(path) if path.exists() else []

    def add(self, entry: CheckpointEntry) -> None:
        """Add a checkpoint; one of the same folder is replaced."""
        kept = [other for other in self.entries if other.folder != entry.folder]
        self._write(sorted([*kept, entry], key=lambda other: (other.attempt, other.step)))

    def remove(self, entry: CheckpointEntry) -> None:
        """Forget a checkpoint."""
        self._write([other for other in self.entries if other.folder != entry.folder])

    def judge(self, entry: CheckpointEntry, verdict: Verdict, reason: str) -> None:
        """Change the verdict on a checkpoint."""
        changed = dataclasses.replace(entry, verdict=verdict, reason=reason)
        self._write([changed if other == entry else other for other in self.entries])

    def healthy_until(self, step: int) -> None:
        """Training has reached `step` without an open incident: older checkpoints are proven."""
        for entry in self.entries:
            if entry.verdict is Verdict.UNPROVEN and step - entry.step >= PROVEN_AFTER_STEPS:
                reason = f"no incident in the {step - entry.step} steps after it"
                self.judge(entry, Verdict.PROVEN, reason)

    def hurt_since(self, onset: int, reason: str) -> None:
        """An incident hurt the weights from `onset` on: checkpoints after it are bad."""
        for entry in self.entries:
            if entry.step > onset and entry.verdict is not Verdict.BAD:
                self.judge(entry, Verdict.BAD, reason)

    def candidates(self, before: int | None = None) -> list[CheckpointEntry]:
        """What a restore may use, best first: proven ones, then unproven, the newest first."""
        usable = [
            entry
            for entry in self.entries
            if entry.verdict is not Verdict.BAD and (before is None or entry.step <= before)
        ]
        return sorted(
            usable, key=lambda e: (e.verdict is Verdict.PROVEN, e.attempt, e.step), reverse=True
        )

    @property
    def last_proven(self) -> CheckpointEntry | None:
        """The newest proven checkpoint: the one that retention must never delete."""
        proven = [entry for entry in self.entries if entry.verdict is Verdict.PROVEN]
        return proven[-1] if proven else None

    def _write(self, entries: list[CheckpointEntry]) -> None:
        content = {"version": 1, "checkpoints": [dataclasses.asdict(entry) for entry in entries]}
        partial = self._path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        self.entries = entries


def _read(path: Path) -> list[CheckpointEntry]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return [
            CheckpointEntry(**{**entry, "verdict": Verdict(entry["verdict"])})
            for entry in content["checkpoints"]
        ]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise RestoreError(
            f"{path} cannot be read ({error}); move it away to start a new index"
        ) from error
