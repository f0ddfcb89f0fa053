"""The Trainer's own checkpoints: verdicts for them, and where to resume."""

import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from trimtab.integrations.trainers.adapter import TrainerAdapter
from trimtab.journal import RunDirectory
from trimtab.live.shield import log
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

LINKS = "lightning"
"""The folder in that of the run where a file is linked to, until it is registered."""


def last_good_checkpoint(run_dir: str | Path) -> str | None:
    """The newest checkpoint of a run that is not bad; None if the run has none.

    For `trainer.fit(model, loader, ckpt_path=last_good_checkpoint("runs/x1"))`. With several ranks
    call it on all of them.
    """
    folder = Checkpoints(run_dir=run_dir).find()
    if folder is None:
        return None
    files = sorted(folder.glob("*.ckpt"))
    return str(files[0] if files else folder)


class CheckpointRegister:
    """Registers every checkpoint that the Trainer saves, so that it gets a verdict."""

    def __init__(
        self, adapter: TrainerAdapter, trainer: Trainer, checkpoints: Checkpoints, run_dir: Path
    ) -> None:
        self._adapter = adapter
        self._trainer = trainer
        self._checkpoints = checkpoints
        self._links = RunDirectory(run_dir.absolute()).home / LINKS
        if isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            log.warning(
                "trimtab: AsyncCheckpointIO does not say when a file is complete, so checkpoints "
                "get no verdicts"
            )
        else:
            adapter.replace(trainer, "save_checkpoint", self._save)

    def _save(
        self, original: Any, filepath: Any, weights_only: Any = None, storage_options: Any = None
    ) -> None:
        """Save as the Trainer does, and register what was saved; on all ranks."""
        guard = self._adapter.guard
        if guard is not None:
            guard.event("checkpoint")  # the time that it takes is no stall
        original(filepath, weights_only, storage_options)
        path = Path(filepath)
        # Weights alone are nothing to resume from.
        if guard is not None and not weights_only and not self._adapter.shield.is_down:
            if guard.recovery is not None and guard.recovery.tape.is_replaying:
                # The loader is ahead of the run: its state would lose batches at a resume.
                loaders = self._trainer.fit_loop._combined_loader.flattened
                if any(hasattr(loader, "state_dict") for loader in loaders):
                    return
            with self._adapter.shield.guarding("checkpoint"):
                self._register(path)

    def _register(self, path: Path) -> None:
        step = self._trainer.global_step
        if path.is_dir():
            self._checkpoints.add(path, step=step)
            return
        folder = self._links / f"step-{step:08}"
        problem = ""
        if self._trainer.is_global_zero:
            try:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                (folder / path.name).hardlink_to(path)
            except OSError as error:
                problem = str(error)
        problem = self._trainer.strategy.broadcast(problem)
        if problem:
            log.warning("trimtab: %s cannot be linked, so it gets no verdict: %s", path, problem)
        else:
            self._checkpoints.add(folder, step=step)
        if self._trainer.is_global_zero:
            shutil.rmtree(folder, ignore_errors=True)
