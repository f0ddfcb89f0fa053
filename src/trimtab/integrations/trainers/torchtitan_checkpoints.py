"""TitanCheckpoints: torchtitan's checkpoints get verdicts, and it resumes from a good one.

While batches are served again the loader is ahead of the run, and torchtitan saves the state of the
loader: a checkpoint from that time would lose batches, so it is not registered.
"""

from pathlib import Path
from typing import Any

from trimtab.core.errors import TrimtabError
from trimtab.integrations.trainers.adapter import TrainerAdapter
from trimtab.integrations.trainers.guard_file import DataMark, load_guard_file, write_guard_file
from trimtab.live.guard import Guard
from trimtab.live.shield import log
from trimtab.state.checkpoints.run_checkpoints import Checkpoints


class TitanCheckpoints:
    """Stands between the Trainer and its checkpointer."""

    def __init__(self, trainer: Any, adapter: TrainerAdapter, run_dir: Path) -> None:
        self.register = Checkpoints(run_dir=run_dir)
        """The checkpoints of the run, with their verdicts."""
        self._checkpointer = trainer.checkpointer
        self._adapter = adapter
        self._resumed: Path | None = None
        self._in_background: int | None = None
        """The step of a save that may not be complete yet."""

    def load(self, original: Any, step: int = -1) -> Any:
        """Replace `load`: the newest checkpoint that is not bad, unless a step is named."""
        folder = self._last_good() if step == -1 and self._checkpointer.enable else None
        if folder is None:
            return original(step)
        self._resumed = folder
        log.info("trimtab: resumes from %s", folder)
        self._checkpointer._create_checkpoint_id = lambda *unused, **more: str(folder)
        try:
            return original(int(folder.name.split("-")[1]) - 1)
        finally:
            del self._checkpointer._create_checkpoint_id

    def resume(self, guard: Guard) -> int | None:
        """Let the guard continue; the position of the first batch, if a checkpoint has it."""
        mark = None if self._resumed is None else load_guard_file(self._resumed, guard)
        return None if mark is None else mark.position

    def save(self, original: Any, curr_step: int, last_step: bool = False) -> Any:
        """Replace `save`: register what was saved; on all ranks."""
        is_saved = original(curr_step, last_step)
        guard = self._adapter.guard
        if is_saved and guard is not None:
            guard.event("checkpoint")  # the time that it takes is no stall
            with self._adapter.shield.guarding("checkpoint"):
                self._saved(guard, curr_step, last_step)
        return is_saved

    def _last_good(self) -> Path | None:
        try:
            return self.register.find()
        except TrimtabError:  # the user can fix it, and nothing has been trained yet
            raise
        except Exception:
            log.exception("trimtab found no checkpoint; torchtitan takes its newest one")
            return None

    def _saved(self, guard: Guard, step: int, is_last: bool) -> None:
        checkpointer = self._checkpointer
        before, self._in_background = self._in_background, None
        if before is not None:  # saving again has waited for it
            self._add(before)
        if is_last and checkpointer.last_save_model_only:
            return  # weights alone are nothing to resume from
        recovery = guard.recovery
        if recovery is not None and recovery.tape.is_replaying:
            return
        if self.register.is_first_rank:
            state = guard.state_dict(with_random_state=False)  # torchtitan saves none
            mark = DataMark(position=guard.data_position, skipped=0)
            write_guard_file(self._folder(step), state, mark)
        if is_last or checkpointer.save_future is None:
            self._add(step)
        else:
            self._in_background = step

    def _add(self, step: int) -> None:
        self.register.add(self._folder(step), step=step + 1)

    def _folder(self, step: int) -> Path:
        return Path(self._checkpointer._create_checkpoint_id(step))
