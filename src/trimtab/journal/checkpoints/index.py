"""checkpoints.json: the checkpoints of a run; verdicts.json: what its observer thinks of each.

The run alone writes the first, its observer alone the second. An index shows both as one.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from trimtab.core.errors import RestoreError
from trimtab.core.text import printable
from trimtab.journal.checkpoints.manifest import (
    MANIFEST,
    CheckpointFacts,
    Manifest,
    read_checked_json,
    read_manifest,
    to_checked_json,
)
from trimtab.journal.files import inside, read_json, replace_file

INDEX = "checkpoints.json"
VERDICTS = "verdicts.json"
FOLDER = "checkpoints"
"""The folder, beside the index, that holds one folder per checkpoint."""

NAME = re.compile(r"step-[0-9]{1,20}(-[0-9]{1,9})?")
"""The name of the folder of a checkpoint; a name that is none of these is not of trimtab."""


class Verdict(StrEnum):
    """What is known of a checkpoint."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One checkpoint of a run."""

    folder: str
    """Its name in the folder of checkpoints."""
    facts: CheckpointFacts
    verdict: Verdict = Verdict.UNPROVEN
    reason: str = "saved, not yet trained on from"
    """Why the verdict is what it is, in one sentence."""
    in_doubt: bool = False
    """Whether an incident that is not over may reach back to it, or the run went back to before it:
    used only if there is no other."""
    given_up_for: int | None = None
    """The step before it that the run has gone back to; known before its records are."""
    damage: str = ""
    """What is wrong with its files, in one sentence; empty if nothing is known to be."""

    @property
    def step(self) -> int:
        """The step that comes next from it."""
        return self.facts.step


FAR_STEPS = 1000
"""Steps before the newest, by which one proven checkpoint is older. Source: the stability guides go
back at least so far from a loss that does not recover."""


class CheckpointIndex:
    """The entries in the order of saving; every change is on disk before the call returns."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._path = home / INDEX
        self.folder = inside(home, FOLDER)
        self.entries: list[CheckpointEntry] = []
        self.problem = ""
        """Why the file could not be read and was rebuilt from the folders, if it was."""
        self.judged_tick = -1
        """The last record that the verdicts follow from; -1 if nobody has judged the run."""
        self.read()

    def read(self) -> None:
        """Read the file again, and find complete checkpoints that it does not list.

        A run that was killed may have left one that was not listed yet, or no longer.
        """
        try:
            self.entries = _read(self._path) if self._path.exists() else []
        except RestoreError as error:
            self.entries, self.problem = [], str(error)
        known = {entry.folder for entry in self.entries}
        for path in self.folder.glob(f"*/{MANIFEST}"):
            name = path.parent.name
            if name not in known and NAME.fullmatch(name):
                try:
                    facts = read_manifest(inside(self.folder, name)).facts
                except (OSError, RestoreError):
                    continue  # it cannot be what it claims to be
                self.entries.append(CheckpointEntry(folder=name, facts=facts))
        self.entries.sort(key=lambda entry: entry.facts.serial)
        self.judged_tick, verdicts = _read_verdicts(self._home / VERDICTS)
        self.entries = [_with_verdict(entry, verdicts) for entry in self.entries]

    def read_verdicts(self) -> None:
        """Take over what the observer has written since the index was read."""
        self.judged_tick, verdicts = _read_verdicts(self._home / VERDICTS)
        self.update([_with_verdict(entry, verdicts) for entry in self.entries])

    @property
    def next_serial(self) -> int:
        return max((entry.facts.serial for entry in self.entries), default=-1) + 1

    def add(self, entry: CheckpointEntry) -> None:
        self._write([*self.entries, entry])

    def remove(self, entry: CheckpointEntry) -> None:
        """Forget a checkpoint, then delete it: the index never lists what is half deleted."""
        self._write([other for other in self.entries if other.folder != entry.folder])
        delete_folder(self.folder, entry.folder)

    def path(self, entry: CheckpointEntry) -> Path:
        """Return the folder with the files of a checkpoint; raises OSError if it is no such."""
        if entry.facts.source:
            root = self._home.parent.resolve()
            return inside(root, os.path.relpath(root / entry.facts.source, root))
        return inside(self.folder, entry.folder)

    def read_files(self, entry: CheckpointEntry) -> tuple[Path, Manifest]:
        """Return the folder with the files of a checkpoint, and its manifest.

        Raises RestoreError if it cannot be read, or is that of a different checkpoint.
        """
        try:
            manifest = read_manifest(inside(self.folder, entry.folder))
            if manifest.facts != entry.facts:
                raise RestoreError(f"{entry.folder} has the manifest of a different checkpoint")
            return self.path(entry), manifest
        except OSError as error:
            raise RestoreError(f"{entry.folder} cannot be read: {error}") from error

    def update(self, entries: list[CheckpointEntry]) -> None:
        """Replace entries of the same folders."""
        changed = {entry.folder: entry for entry in entries}
        present = [changed.get(entry.folder, entry) for entry in self.entries]
        if present != self.entries:
            self._write(present)

    def candidates(self, before: int | None = None) -> list[CheckpointEntry]:
        """What a restore may use, best first: the newest; those in doubt after all others."""
        usable = [
            entry
            for entry in reversed(self.entries)
            if entry.verdict is not Verdict.BAD and (before is None or entry.step <= before)
        ]
        return sorted(usable, key=lambda entry: entry.in_doubt)

    def spare(self, keep: int) -> list[CheckpointEntry]:
        """What retention may delete: all but the newest `keep` that are not bad, and some more.

        The last proven one. The newest proven one that is `FAR_STEPS` older than the newest, and
        the oldest proven one after it, which takes its place one day. The oldest that may become
        proven next: with short intervals each would be deleted before it is old enough. The newest
        one even if it is bad: to look at.
        """
        good = [entry for entry in self.entries if entry.verdict is not Verdict.BAD]
        proven_at = [n for n, entry in enumerate(good) if entry.verdict is Verdict.PROVEN]
        last_proven = proven_at[-1] if proven_at else -1
        next_proven = [entry for entry in good[last_proven + 1 :] if not entry.in_doubt][:1]
        proven = good[last_proven : last_proven + 1] if proven_at else []
        far = [n for n in proven_at if good[n].step <= good[-1].step - FAR_STEPS][-1:]
        far += [n for n in proven_at if n not in far and n > max(far, default=-1)][:1]
        older = [good[n] for n in far]
        needed = (*good[-keep:], *proven, *older, *next_proven, *self.entries[-1:])
        kept = {entry.folder for entry in needed}
        return [entry for entry in self.entries if entry.folder not in kept]

    def _write(self, entries: list[CheckpointEntry]) -> None:
        content = {"version": 1, "checkpoints": [dataclasses.asdict(entry) for entry in entries]}
        replace_file(self._path, to_checked_json(content))
        self.entries = entries


def _read(path: Path) -> list[CheckpointEntry]:
    try:
        return [_entry(part) for part in read_checked_json(path)["checkpoints"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RestoreError(f"{path} cannot be read: {error}") from error


def write_verdicts(home: Path, tick: int, entries: Iterable[CheckpointEntry]) -> None:
    """Write the verdicts that follow from the records up to a tick; for an observer."""
    verdicts = {
        entry.folder: {
            "serial": entry.facts.serial,
            "verdict": entry.verdict.value,
            "reason": entry.reason,
            "in_doubt": entry.in_doubt,
        }
        for entry in entries
    }
    content = {"version": 1, "tick": tick, "checkpoints": verdicts}
    replace_file(home / VERDICTS, json.dumps(content, indent=1) + "\n")


def judged_tick(home: Path) -> int:
    """Return the last record that the verdicts follow from; -1 if nobody has judged the run."""
    return _read_verdicts(home / VERDICTS)[0]


def _read_verdicts(path: Path) -> tuple[int, dict[str, Any]]:
    try:
        content = read_json(path)
        tick, verdicts = content["tick"], content["checkpoints"]
    except (OSError, ValueError, KeyError):
        return -1, {}
    is_usable = type(tick) is int and isinstance(verdicts, dict)
    return (tick, verdicts) if is_usable else (-1, {})


def _with_verdict(entry: CheckpointEntry, verdicts: Mapping[str, Any]) -> CheckpointEntry:
    """Return an entry with the observer's verdict; damage and a step given up are known here."""
    try:
        found = verdicts[entry.folder]
        verdict = Verdict(found["verdict"])
        reason, in_doubt = printable(str(found["reason"])[:500]), found["in_doubt"] is True
        is_same = found["serial"] == entry.facts.serial
    except (KeyError, TypeError, ValueError):
        return entry
    if not is_same or entry.damage or entry.facts.fault:
        return entry
    entry = dataclasses.replace(entry, verdict=verdict, reason=reason, in_doubt=in_doubt)
    return entry if entry.given_up_for is None else mark_given_up(entry, entry.given_up_for)


def mark_given_up(entry: CheckpointEntry, step: int) -> CheckpointEntry:
    """Return an entry of a run that went back to a step before it; one that is bad stays bad."""
    if entry.verdict is not Verdict.BAD:
        reason = f"the run went back to step {step:,} after it was saved"
        entry = dataclasses.replace(entry, verdict=Verdict.UNPROVEN, reason=reason, in_doubt=True)
    return dataclasses.replace(entry, given_up_for=step)


def _entry(part: dict[str, Any]) -> CheckpointEntry:
    facts, verdict = CheckpointFacts(**part["facts"]), Verdict(part["verdict"])
    texts = {name: printable(str(part[name])) for name in ("reason", "damage")}
    entry = CheckpointEntry(**{**part, **texts, "facts": facts, "verdict": verdict})
    given_up = entry.given_up_for
    if not NAME.fullmatch(entry.folder) or not (given_up is None or type(given_up) is int):
        raise ValueError(f"not a folder of a checkpoint: {printable(entry.folder[:200])!r}")
    return entry


def delete_folder(folder: Path, name: str) -> None:
    """Delete a checkpoint; of a link the link alone, and nothing outside of its folder."""
    with contextlib.suppress(OSError):
        path = folder / name
        if path.is_symlink():
            path.unlink()
        path = inside(folder, name)
        (path / MANIFEST).unlink(missing_ok=True)  # first: without it nothing takes it for whole
        shutil.rmtree(path, ignore_errors=True)
