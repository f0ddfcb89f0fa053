"""CheckpointStore: saves that are complete or invisible, loads that verify first.

save      step-00000400.partial/ -> files, checksums, manifest -> rename -> index -> retention
adopt     the same with links to files that the training loop wrote
load      verify all files, then open

Every method is called on all ranks. A save in the background counts only once it is complete.
"""

import dataclasses
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from trimtab.core.checkpointer import Checkpointer
from trimtab.core.errors import RestoreError
from trimtab.core.log import log
from trimtab.core.plugins import describe_error
from trimtab.journal.checkpoints import manifest as manifests
from trimtab.journal.checkpoints.index import (
    NAME,
    CheckpointEntry,
    CheckpointIndex,
    Verdict,
    delete_folder,
)
from trimtab.journal.checkpoints.manifest import CheckpointFacts, Manifest, link_files
from trimtab.journal.files import inside
from trimtab.journal.rollback import pending_rollback

T = TypeVar("T")


class Ranks:
    """The ranks that share the checkpoints of one run. Make it on all of them at the same time."""

    def __init__(self, process_group: Any = None) -> None:
        self.rank, self.world = 0, 1
        self._group: Any = None
        self.checkpointer_group: Any = None
        """For the checkpointer alone: it may save in a thread while the ranks talk elsewhere."""
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.world > 1:
            members = dist.get_process_group_ranks(process_group or dist.group.WORLD)
            # On the host, and apart from the user's groups: collectives of a background save would
            # mix with theirs.
            self._group, self.checkpointer_group = (
                dist.new_group(members, backend="gloo", use_local_synchronization=True)
                for _ in range(2)
            )

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the index."""
        return self.rank == 0

    def all(self, action: Callable[[], T]) -> list[T]:
        """Do something on every rank; returns the results of all, or raises RestoreError."""
        result: T | None = None
        problem: str | None = None
        try:
            result = action()
        except Exception as error:  # the other ranks must know of it
            problem = describe_error(error)
        outcomes = self._gather((result, problem))
        for rank, (_, why) in enumerate(outcomes):
            if why is not None:
                raise RestoreError(why if self.world == 1 else f"rank {rank}: {why}")
        return [value for value, _ in outcomes]

    def first(self, action: Callable[[], T]) -> T:
        """Do something on the first rank; returns its result on every rank."""
        return cast(T, self.all(lambda: action() if self.is_first else None)[0])

    def share(self, names: list[str]) -> list[str]:
        """The part of a list that this rank works on."""
        return names[self.rank :: self.world]

    def _gather(self, value: Any) -> list[Any]:
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._group)
        return values


PARTIAL = ".partial"


class CheckpointStore:
    """The checkpoints of one run, in its `trimtab/` folder."""

    def __init__(
        self, home: Path, checkpointer: Checkpointer, ranks: Ranks | None = None, keep: int = 3
    ) -> None:
        self._checkpointer = checkpointer
        self.ranks = ranks or Ranks()
        self.index = CheckpointIndex(home)
        self._keep = keep
        self._background: threading.Thread | None = None

    def save(
        self,
        facts: CheckpointFacts,
        state: dict[str, Any],
        of_rank: Any = None,
        *,
        background: bool = False,
        may_delete: bool = True,
    ) -> None:
        """Save a checkpoint; raises RestoreError, on all ranks, if it fails on one.

        `of_rank` is what only this rank needs. In the background a failure is logged. Old ones are
        deleted only if the first rank has `may_delete`.
        """
        self.wait()
        partial = self.ranks.first(lambda: self._make_partial(facts.step))
        data = _to_bytes(of_rank)

        def complete(write: Callable[[], Any]) -> None:
            def write_all() -> None:
                write()
                self._rank_file(partial, self.ranks.rank).write_bytes(data)

            with self._abandoned_on_error(partial):
                self.ranks.all(write_all)
                self._commit(partial, facts, may_delete=may_delete)

        def complete_in_background(written: "Future[Any]") -> None:
            try:
                complete(written.result)
            except Exception as error:
                report_failure(facts.step, error)

        begin = getattr(self._checkpointer, "save_in_background", None)
        if background and begin is not None:
            written = _start(begin, partial, state)
            self._background = threading.Thread(
                target=complete_in_background, args=(written,), name="trimtab-checkpoint"
            )
            self._background.start()
        else:
            complete(lambda: self._checkpointer.save(partial, state))

    def adopt(self, facts: CheckpointFacts, source: Path, *, may_delete: bool = True) -> None:
        """Take over a checkpoint that the training loop has written; its files are not copied."""
        self.wait()
        partial = self.ranks.first(lambda: self._make_partial(facts.step))
        with self._abandoned_on_error(partial):
            problem = self.ranks.first(lambda: link_files(source, partial))
            if problem:
                facts = dataclasses.replace(facts, source=self._name_in_run(source, problem))
                if self.ranks.is_first:
                    log.warning(
                        "trimtab: %s; if the training loop deletes this checkpoint, it is gone, "
                        "proven or not",
                        problem,
                    )
            self._commit(partial, facts, may_delete=may_delete)

    def wait(self) -> None:
        """Wait until a save in the background is complete or has failed."""
        if self._background is not None:
            self._background.join()
            self._background = None

    def verify(self, entry: CheckpointEntry) -> list[str]:
        """What is wrong with a checkpoint's files, on all ranks; a damaged one becomes bad."""

        def verify_share() -> list[str]:
            try:
                folder, manifest = self.index.read_files(entry)
            except RestoreError as error:
                return [str(error)]
            names = self.ranks.share(sorted(manifest.files))
            return manifests.find_damage(folder, manifest, names)

        damage = [sentence for part in self.ranks.all(verify_share) for sentence in part]
        if damage and self.ranks.is_first:
            bad = dataclasses.replace(
                entry, verdict=Verdict.BAD, reason=damage[0], damage=damage[0], in_doubt=False
            )
            self.index.update([bad])
        return damage

    def load(self, entry: CheckpointEntry, state: dict[str, Any]) -> None:
        """Read a checkpoint into the tensors of `state`; verify it first."""
        self.ranks.all(lambda: self._checkpointer.load(self.path(entry), state))

    def read_of_rank(self, entry: CheckpointEntry, rank: int) -> Any:
        """What a rank has saved for itself, once verified; None if there was no such rank."""
        path = inside(self.path(entry), self._rank_file(Path(), rank).name)
        if rank >= entry.facts.world or not path.exists():
            return None
        return torch.load(path, map_location="cpu", weights_only=True)

    def path(self, entry: CheckpointEntry) -> Path:
        return self.index.path(entry)

    def _name_in_run(self, source: Path, problem: str) -> str:
        """Name a folder in the run directory; raises RestoreError for one that is elsewhere.

        A name in a file must not lead out of the run directory when it is read again.
        """
        root = self.index.folder.parents[1].resolve()
        try:
            name = source.resolve().relative_to(root).as_posix()
            inside(root, name)
        except (OSError, ValueError):
            raise RestoreError(
                f"{problem}, and it is outside of the run directory; save below {root}"
            ) from None
        return name

    def _make_partial(self, step: int) -> Path:
        """A new folder to write to; removes what a save or a deletion that was killed has left."""
        self.index.folder.mkdir(parents=True, exist_ok=True)
        known = {entry.folder for entry in self.index.entries}
        for path in self.index.folder.iterdir():
            is_whole = (path / manifests.MANIFEST).exists() and not path.is_symlink()
            is_ours = NAME.fullmatch(path.name.removesuffix(PARTIAL))
            if is_ours and (path.suffix == PARTIAL or (path.name not in known and not is_whole)):
                delete_folder(self.index.folder, path.name)
        partial = self.index.folder / f"step-{step:08d}{PARTIAL}"
        partial.mkdir()
        return partial

    def _commit(self, partial: Path, facts: CheckpointFacts, *, may_delete: bool) -> None:
        """Checksums by all ranks; then the first one makes the checkpoint visible."""
        where = self.index.folder.parents[1] / facts.source if facts.source else partial
        names = self.ranks.first(lambda: manifests.list_files(where))
        parts = self.ranks.all(lambda: manifests.describe_files(where, self.ranks.share(names)))
        files = {name: entry for part in parts for name, entry in part.items()}

        def publish() -> None:
            num_bytes = sum(file.size for file in files.values())
            whole = dataclasses.replace(facts, num_bytes=num_bytes, serial=self.index.next_serial)
            manifests.write_manifest(partial, Manifest(facts=whole, files=files))
            _flush(partial)
            final = self._free_name(facts.step)
            partial.rename(final)
            _flush_folder(final.parent)
            is_bad = bool(whole.fault)
            entry = CheckpointEntry(folder=final.name, facts=whole)
            if is_bad:
                entry = dataclasses.replace(entry, verdict=Verdict.BAD, reason=whole.fault)
            self.index.add(entry)
            asked = None
            with suppress(RestoreError):
                asked = pending_rollback(self.index.folder.parent)
            for spare in self.index.spare(self._keep) if may_delete else ():
                if asked is None or spare.folder != asked.checkpoint:
                    self.index.remove(spare)

        self.ranks.first(publish)

    @contextmanager
    def _abandoned_on_error(self, partial: Path) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self.ranks.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise

    def _free_name(self, step: int) -> Path:
        """A folder of its own: a step of an attempt that was given up may have been saved too."""
        name = f"step-{step:08d}"
        number = 1
        while (self.index.folder / name).exists():
            number += 1
            name = f"step-{step:08d}-{number}"
        return self.index.folder / name

    def _rank_file(self, folder: Path, rank: int) -> Path:
        return folder / f"trimtab-rank-{rank:05d}.pt"


def report_failure(step: int, error: Exception) -> None:
    """Log a save that failed: the run goes on, and older checkpoints stay."""
    log.error("trimtab: the checkpoint of step %d could not be saved: %s", step, error)


def _start(begin: Callable[..., "Future[Any]"], folder: Path, state: Any) -> "Future[Any]":
    """Start a save; one that fails at once is a future that has failed."""
    try:
        return begin(folder, state)
    except Exception as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


def _to_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


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


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
