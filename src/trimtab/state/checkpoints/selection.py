"""Selection: which checkpoint a run returns to, and why that one."""

from collections.abc import Mapping, Sequence

from trimtab.core.errors import RestoreError
from trimtab.core.log import log
from trimtab.core.plugins import describe_error
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.checkpoints.index import INDEX, CheckpointEntry
from trimtab.journal.observer_process import judge_to_end
from trimtab.journal.rollback import pending_rollback
from trimtab.state.checkpoints.store import CheckpointStore


class Selection:
    """Judges the checkpoints of a run and finds the newest good one."""

    def __init__(self, store: CheckpointStore, run: RunDirectory) -> None:
        self._store = store
        self._run = run
        self._is_judged = False
        """Whether the verdicts are those of the present run."""

    def find(
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


def _why(
    chosen: CheckpointEntry, entries: Sequence[CheckpointEntry], left_out: Mapping[str, str]
) -> str:
    """Which checkpoint, and why not the newer ones, in one line."""
    why = f"{chosen.folder} is verified and {chosen.verdict} ({chosen.reason})"
    newer = entries[entries.index(chosen) + 1 :]
    skipped = [f"{e.folder} left out: {left_out.get(e.folder, e.reason)}" for e in newer]
    return "; ".join([why, *reversed(skipped)])
