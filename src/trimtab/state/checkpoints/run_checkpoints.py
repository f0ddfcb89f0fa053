"""Checkpoints: what the user holds to save a run and to resume it.

checkpoints = trimtab.Checkpoints(
    model, optimizer, run_dir="runs/x1", scheduler=scheduler, every_seconds=1800
)
checkpoints.resume()
with trimtab.watch(model, optimizer, run_dir="runs/x1", checkpoints=checkpoints) as guard:
    for step in guard.steps(loader):
        ...

With `every_steps` or `every_seconds` the guard saves by itself; else `guard.checkpoint()` does.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab.core.checkpointer import Checkpointer, find_checkpointer
from trimtab.core.errors import ConfigError, RestoreError
from trimtab.core.log import log
from trimtab.core.plugins import describe_error
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.checkpoints.index import INDEX, CheckpointEntry, Verdict, mark_given_up
from trimtab.journal.checkpoints.manifest import CheckpointFacts
from trimtab.journal.observer_process import judge_to_end
from trimtab.journal.rollback import pending_rollback
from trimtab.state.checkpoints.cadence import Cadence
from trimtab.state.checkpoints.content import (
    DcpCheckpointer,
    buffers_left_out,
    content_of,
    find_nonfinite,
    put_content,
)
from trimtab.state.checkpoints.data_cursor import DataCursor, LoaderPass
from trimtab.state.checkpoints.rank_state import RankState, read_rank_state
from trimtab.state.checkpoints.store import CheckpointStore, Ranks, report_failure
from trimtab.state.rng import get_random_state, set_random_state
from trimtab.state.training_state import HasState, TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where a run goes on."""

    step: int = 0
    """The number of the next step; 0 for a run that begins."""
    data_position: int = 0
    """The position of the next batch, over all epochs."""
    epoch: int = 0
    """Passes over the loader that were complete."""
    folder: Path | None = None
    """The checkpoint that was loaded; None for a run that begins."""
    reason: str = "the run has no checkpoint"
    """Why this one, and why not a newer one."""


class Checkpoints:
    """The checkpoints of a run. Make it, and call every method, on all ranks at the same time."""

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizer | Sequence[Optimizer] = (),
        *,
        run_dir: str | Path,
        scheduler: HasState | Sequence[HasState | None] | None = (),
        scaler: Any = None,
        state: Mapping[str, HasState] | None = None,
        checkpointer: Checkpointer | str | None = None,
        background: bool = False,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 3,
        process_group: Any = None,
    ) -> None:
        """Find the checkpoints of a run; nothing is written until one is saved.

        Args:
            model: The model that is trained, wrapped or not; none if the loop saves by itself and
                only `add` and `find` are used.
            optimizer: A torch optimizer, or several.
            run_dir: The folder of the run, as for `trimtab.watch`.
            scheduler: A learning rate scheduler, or several; None if there is none.
            scaler: The GradScaler of an fp16 run.
            state: What else the run needs, by name: anything with state_dict and load_state_dict.
            checkpointer: How files are written: your own object, the name of an installed one, or
                torch's distributed checkpoints.
            background: Whether a save is written while training goes on.
            every_steps: Save after so many steps, in a loop over `guard.steps`; in another loop,
                where `guard.checkpoint(if_due=True)` is called. Whichever of both comes first.
            every_seconds: The same, by the clock of the first rank.
            keep: How many checkpoints stay, besides the last proven one, its successor, and a
                proven one that is at least 1,000 steps older than the newest.
            process_group: The ranks that train the model, if not all do.
        """
        if keep < 1:
            raise ConfigError(f"keep must be at least 1, got {keep}")
        run = RunDirectory(Path(run_dir).absolute())
        self._run = run
        self._has_warned = False
        self._ranks = Ranks(process_group)
        if isinstance(checkpointer, str):
            checkpointer = find_checkpointer(checkpointer)
        files = checkpointer or DcpCheckpointer(self._ranks.checkpointer_group)
        try:
            self._store = CheckpointStore(run.home, files, self._ranks, keep)
        except OSError as error:
            raise ConfigError(f"the checkpoints cannot be there: {error}") from error
        self._is_judged = False
        """Whether the verdicts are those of the present run."""
        self._background = background
        self.cadence = Cadence(self._ranks, every_steps, every_seconds)
        """When the next checkpoint is due."""
        self._state: TrainingState | None = None
        if model is not None:
            optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
            schedulers = _as_schedulers(scheduler)
            self._state = TrainingState(model, optimizers, schedulers, scaler, dict(state or {}))
        self.cursor = DataCursor()
        """Where the run is in its data."""
        self.resumed = Resumed()
        """Where the run goes on."""
        self.guard_state: dict[str, Any] = {}
        """What the guard had learnt when the checkpoint was saved."""
        self._attempt: Callable[[], int] = lambda: 0
        self._judge_now: Callable[[], bool | None] = lambda: True
        self._trains: Callable[[], bool] = lambda: False

    @property
    def is_first_rank(self) -> bool:
        """Whether this rank writes what all ranks share."""
        return self._ranks.is_first

    @property
    def entries(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints in the order of saving, on the first rank."""
        self._store.wait()
        return tuple(self._store.index.entries)

    def resume(self, step: int | None = None, *, before: int | None = None) -> Resumed:
        """Load the newest checkpoint that is verified and not bad, and log which and why.

        A run without checkpoints begins at step 0. `step` asks for the checkpoint of that step,
        whatever its verdict; its files must be undamaged. `before` asks for one that is not newer
        than that step, such as the onset of an incident.
        """
        found = self._select(step, before)
        if found is None:
            if self._ranks.is_first:
                log.info("trimtab: begins at step 0: %s", self.resumed.reason)
            return self.resumed
        entry, reason = found
        of_rank = self._load(entry)
        self.cursor.return_to(of_rank.mark, of_rank.position, of_rank.random)
        self.guard_state = of_rank.guard
        self.resumed = Resumed(
            step=entry.step,
            data_position=self.cursor.position,
            epoch=self.cursor.epoch,
            folder=self._store.path(entry),
            reason=reason,
        )
        if self._ranks.is_first:
            log.info("trimtab: resumes at step %d: %s", entry.step, reason)
        return self.resumed

    def proven_step(self, before: int) -> int | None:
        """Return the step of the newest proven checkpoint up to a step; None without one."""
        self._read_current_verdicts()
        found = self._store.index.candidates(before)
        proven = [entry.step for entry in found if entry.verdict is Verdict.PROVEN]
        return max(proven, default=None)

    def find(self, before: int | None = None) -> Path | None:
        """The folder of the checkpoint that `resume` would load; for a loop that loads itself."""
        found = self._select(None, before)
        return None if found is None else self._store.path(found[0])

    def batches(self, loader: Iterable[Any]) -> LoaderPass:
        """One pass over a loader; after `resume`, what is left of the pass that was interrupted.

        `guard.steps` does this by itself.
        """
        return LoaderPass(self.cursor, loader)

    def save(
        self,
        step: int,
        *,
        data_position: int | None = None,
        guard_state: dict[str, Any] | None = None,
    ) -> None:
        """Save the state between two steps; `step` is the number of the next one.

        A save that fails is logged and does not stop the run. With a guard, call
        `guard.checkpoint()` instead: it knows the step, and what the gate has learnt.
        """
        state = self._require_state()
        began = time.monotonic()
        self._store.wait()
        may_delete = self._read_current_verdicts()
        mark, position = self.cursor.mark(data_position)
        try:
            trains = self._trains()
            faults = self._ranks.all(lambda: find_nonfinite(state, trains=trains))
            fault = next(filter(None, faults), "")
            content = content_of(state)
            of_rank = RankState(
                mark=mark,
                position=position,
                random=get_random_state(),
                guard=guard_state or {},
                buffers=buffers_left_out(state, content),
            )
            facts = self._facts(step, position, fault)
            if fault and self._ranks.is_first:
                log.warning("trimtab: the checkpoint of step %d is bad: %s", step, fault)
            self._store.save(
                facts,
                content,
                of_rank.to_plain(),
                background=self._background,
                may_delete=may_delete,
            )
        except Exception as error:  # a run is worth more than one of its checkpoints
            if self._ranks.is_first:
                report_failure(step, error)
        self.cadence.note_save(step, began)

    def add(self, folder: str | Path, step: int) -> None:
        """Take over a checkpoint that your loop has saved: verdicts, and links to its files.

        The links keep it when your loop deletes it, for as long as trimtab's retention does.
        """
        self._store.wait()
        may_delete = self._read_current_verdicts()
        try:
            facts = self._facts(step, self.cursor.position, "")
            self._store.adopt(facts, Path(folder), may_delete=may_delete)
        except RestoreError as error:
            if self._ranks.is_first:
                report_failure(step, error)

    def attach(
        self,
        *,
        attempt: Callable[[], int],
        judge: Callable[[], bool | None],
        trains: Callable[[], bool],
    ) -> None:
        """Connect a guard: the present attempt, and what has the run judged before a save.

        `judge` returns whether the verdicts are of that moment: only then anything is deleted. It
        returns None if nobody was asked to judge the run.
        `trains` returns whether loss and gradients are known to be finite.
        """
        self._attempt, self._judge_now, self._trains = attempt, judge, trains

    def read_verdicts(self) -> None:
        """Take over the verdicts of the run's observer; on the first rank."""
        if self._ranks.is_first:
            self._store.index.read_verdicts()

    def _read_current_verdicts(self) -> bool:
        is_current = self._judge_now()
        self.read_verdicts()
        if is_current is None and self._ranks.is_first and not self._has_warned:
            self._has_warned = True
            log.warning(
                "trimtab: the run is not judged, so no old checkpoint is deleted: trimtab observe "
                "%s",
                self._run.root,
            )
        return bool(is_current)

    def give_up_after(self, step: int) -> None:
        """Doubt the checkpoints after a step: their updates have been undone; on the first rank."""
        self._store.wait()
        index = self._store.index
        given_up = [entry for entry in index.entries if entry.step > step]
        index.update([mark_given_up(entry, step) for entry in given_up])

    def wait(self) -> None:
        """Wait for a save in the background: before the process ends."""
        self._store.wait()

    def _select(
        self, step: int | None = None, before: int | None = None
    ) -> tuple[CheckpointEntry, str] | None:
        """The checkpoint to load, verified, and why this one; None for a run without any."""
        self._store.wait()
        ranks, index = self._store.ranks, self._store.index
        if not self._is_judged:
            self._is_judged = True
            ranks.first(self._judge_journal)
        asked = ranks.first(self._find_asked) if step is None and before is None else None
        entries, candidates = ranks.first(lambda: (index.entries, index.candidates(before)))
        if not entries:
            return None
        if asked is not None:
            candidates = [asked]
        if step is not None:
            candidates = [entry for entry in reversed(entries) if entry.step == step]
        left_out = {entry.folder: entry.reason for entry in entries if entry not in candidates}
        for entry in candidates:
            damage = self._store.verify(entry)
            if not damage:
                why = _why(entry, entries, left_out)
                return entry, why if asked is None else f"`trimtab rollback` asks for it; {why}"
            left_out[entry.folder] = damage[0]
        listed = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        wanted = "" if step is None else f" of step {step}"
        raise RestoreError(
            f"no checkpoint{wanted} can be loaded ({listed}); call resume(step=...) to load one "
            "that is bad, or move the folder of the run away to begin again"
        )

    def _find_asked(self) -> CheckpointEntry | None:
        """Return the checkpoint that a person has asked to go back to; None if nobody has."""
        try:
            asked = pending_rollback(self._run.home)
        except RestoreError as error:
            log.warning("trimtab: no rollback is made: %s", error)
            return None
        return None if asked is None else asked.find(self._store.index)

    def _judge_journal(self) -> None:
        """Read the index again and judge it: the last run may have been killed before it did."""
        index = self._store.index
        index.read()
        if index.problem:
            log.warning("trimtab: %s; the list was made again from the folders", index.problem)
        try:
            if index.entries and not self._is_current(index.judged_tick):
                judge_to_end(self._run)
            index.read_verdicts()
        except Exception as error:  # verified files are worth more than the latest verdicts
            log.warning("trimtab: the verdicts are those of %s: %s", INDEX, describe_error(error))

    def _is_current(self, judged_tick: int) -> bool:
        """Return whether the observer of the last launch has judged the whole journal."""
        if not self._run.exists():
            return True
        block = read_journal(self._run, signals=(), find_damage=False).block
        return not len(block) or judged_tick >= int(block.tick[-1])

    def _facts(self, step: int, position: int, fault: str) -> CheckpointFacts:
        return CheckpointFacts(
            step=step,
            data_position=position,
            attempt=self._attempt(),
            world=self._ranks.world,
            num_bytes=0,
            fault=fault,
        )

    def _load(self, entry: CheckpointEntry) -> RankState:
        """Load a verified checkpoint into the live objects; random numbers last."""
        state = self._require_state()
        content = content_of(state)
        self._store.load(entry, content)
        put_content(state, content)
        of_rank = read_rank_state(self._store, entry)
        of_rank.put_buffers(buffers_left_out(state, content))
        if of_rank.random is not None:
            set_random_state(of_rank.random)
        return of_rank

    def _require_state(self) -> TrainingState:
        if self._state is None:
            raise ConfigError("these Checkpoints have no model; pass the model and the optimizer")
        return self._state


def _as_schedulers(given: HasState | Sequence[HasState | None] | None) -> list[HasState]:
    several = given if isinstance(given, Sequence) else [given]
    return [scheduler for scheduler in several if scheduler is not None]


def _why(
    chosen: CheckpointEntry, entries: Sequence[CheckpointEntry], left_out: Mapping[str, str]
) -> str:
    """Which checkpoint, and why not the newer ones, in one line."""
    why = f"{chosen.folder} is verified and {chosen.verdict} ({chosen.reason})"
    newer = entries[entries.index(chosen) + 1 :]
    skipped = [f"{e.folder} left out: {left_out.get(e.folder, e.reason)}" for e in newer]
    return "; ".join([why, *reversed(skipped)])
