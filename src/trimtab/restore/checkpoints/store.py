"""CheckpointStore: saves that are complete or invisible, loads that verify first.

save      step-000400.partial/ -> files, checksums, manifest -> rename to step-000400/ -> index
load      candidates best first: verify all files, then open; damaged ones become bad
delete    never the last proven checkpoint
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trimtab.core.checkpointer import Checkpointer
from trimtab.core.errors import RestoreError
from trimtab.restore.checkpoints import manifest
from trimtab.restore.checkpoints.index import CheckpointEntry, CheckpointIndex, Verdict

PARTIAL = ".partial"


class CheckpointStore:
    """The checkpoints of one run. Every method is called on all ranks."""

    def __init__(
        self,
        folder: Path,
        checkpointer: Checkpointer,
        index: CheckpointIndex,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._folder = folder
        self._checkpointer = checkpointer
        self.index = index
        self._group = process_group

    def save(
        self, step: int, state: dict[str, Any], *, data_position: int = -1, attempt: int = 0
    ) -> CheckpointEntry:
        """Save a checkpoint; it exists for others only once all of it is on disk."""
        final = self._folder / f"step-{step:08d}"
        partial = final.with_name(final.name + PARTIAL)
        if self._is_first:
            self.remove_partial()
            partial.mkdir(parents=True)
        self._meet()
        self._checkpointer.save(partial, state)
        self._meet()
        files = self._describe(partial)
        if self._is_first:
            manifest.write_manifest(partial, files)
            _flush(partial)
            if final.exists():  # the same step of an attempt that was given up
                shutil.rmtree(final)
            partial.rename(final)
            _flush_folder(self._folder)
        entry = CheckpointEntry(
            step=step,
            folder=final.name,
            data_position=data_position,
            attempt=attempt,
            world=self._world,
            num_bytes=sum(file.size for file in files.values()),
            verdict=Verdict.UNPROVEN,
            reason="saved, not yet trained on from",
        )
        if self._is_first:
            self.index.add(entry)
        self._meet()
        return entry

    def load(self, state: dict[str, Any], *, before: int | None = None) -> CheckpointEntry:
        """Load the best checkpoint that is undamaged; raises RestoreError if there is none."""
        tried = []
        candidates: list[CheckpointEntry] = self._agree(self.index.candidates(before))
        for entry in candidates:
            damage = self.verify(entry)
            if not damage:
                self._checkpointer.load(self._folder / entry.folder, state)
                return entry
            tried.append(f"{entry.folder}: {damage[0]}")
        reasons = "; ".join(tried) or "the run has no checkpoint that is not bad"
        raise RestoreError(f"no checkpoint can be loaded: {reasons}")

    def verify(self, entry: CheckpointEntry) -> list[str]:
        """What is wrong with a checkpoint's files; a damaged one becomes bad."""
        folder = self._folder / entry.folder
        try:
            files = manifest.read_manifest(folder)
            damage = manifest.find_damage(folder, files, sorted(files)[self._rank :: self._world])
        except RestoreError as error:
            damage = [str(error)]
        damage = [sentence for part in self._gather(damage) for sentence in part]
        if damage and self._is_first:
            self.index.judge(entry, Verdict.BAD, damage[0])
        return damage

    def keep(self, count: int) -> list[CheckpointEntry]:
        """Delete all but the newest `count` and the last proven checkpoint; return the deleted."""
        spare = self.index.last_proven
        deleted = [entry for entry in self.index.entries[:-count] if entry != spare]
        if self._is_first:
            for entry in deleted:
                self.index.remove(entry)  # first: the index must never name what is half deleted
                shutil.rmtree(self._folder / entry.folder, ignore_errors=True)
        self._meet()
        return deleted

    def remove_partial(self) -> None:
        """Remove what a killed save has left."""
        for path in self._folder.glob(f"*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)

    @property
    def _rank(self) -> int:
        return dist.get_rank(self._group) if dist.is_initialized() else 0

    @property
    def _world(self) -> int:
        return dist.get_world_size(self._group) if dist.is_initialized() else 1

    @property
    def _is_first(self) -> bool:
        return self._rank == 0

    def _meet(self) -> None:
        if self._world > 1:
            dist.barrier(group=self._group)

    def _gather(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""
        if self._world == 1:
            return [value]
        values: list[Any] = [None] * self._world
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _agree(self, value: Any) -> Any:
        """The value of the first rank: only it writes the index."""
        return self._gather(value)[0]

    def _describe(self, folder: Path) -> dict[str, manifest.FileEntry]:
        """The checksums of all files, each rank a share of them."""
        names = self._agree(manifest.list_files(folder))
        parts = self._gather(manifest.describe_files(folder, names[self._rank :: self._world]))
        return {name: entry for part in parts for name, entry in part.items()}


def _flush(folder: Path) -> None:
    """Make sure that the files are on disk before the folder gets its name."""
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
