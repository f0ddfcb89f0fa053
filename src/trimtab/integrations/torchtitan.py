"""Trimtab in torchtitan 0.3: docs/trainers.md.

No line of code, one flag:

--override.imports 'trimtab.integrations.torchtitan.watched={"run_dir": "x1", "mode": "protect"}'

torchtitan then builds `WatchedMetrics`, whose `TitanWatcher` replaces on its Trainer:

    train                        checkpoints: it resumes from the last good one
    train_step                   makes the guard, at the first step; notes the batches of each
    forward_backward_step        loss and tokens of each micro-batch
    dist_utils.clip_grad_norm_   the norm before clipping
    close                        all of it is restored

A CUDA graph holds what runs inside `forward_backward_step`: there Python runs once, at its capture.
So losses are recorded outside, and at once, because the next replay overwrites them.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trimtab.core.config import Config, Mode
from trimtab.core.errors import MissingExtra, TrimtabError

try:
    from torchtitan.components.loss import IGNORE_INDEX
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.config.override import derive, override
    from torchtitan.distributed import utils as dist_utils
    from torchtitan.trainer import Trainer
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("torchtitan"):  # it is there, and cannot be imported
        message = f"torchtitan cannot be imported ({error}); triton comes with a torch for CUDA"
        raise MissingExtra(message) from error
    raise MissingExtra.of(f"it needs torchtitan 0.3 ({error})", "torchtitan") from error

from trimtab.integrations.trainer_adapter import (
    TrainerAdapter,
    find_caller,
    load_guard_file,
    write_guard_file,
)
from trimtab.live.guard import Guard
from trimtab.live.shield import log
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

__all__ = ["WatchedMetrics", "watched"]


class TitanWatcher:
    """Watches one Trainer, from its first step to its end."""

    def __init__(
        self, trainer: Any, run_dir: str, mode: Mode | str, settings: dict[str, Any]
    ) -> None:
        config = Config().override(settings) if settings else None
        self.adapter = TrainerAdapter(run_dir or None, mode, config=config)
        self._trainer = trainer
        self._protects = mode in (Mode.PROTECT, Mode.RECOVER)
        self._has_begun = False
        self._shown: torch.Tensor | None = None
        """The last finite loss, for the Trainer's own log."""
        self._run_dir = Path(run_dir or Path(trainer.config.dump_folder) / "trimtab")
        self._checkpoints: TitanCheckpoints | None = None
        self.adapter.replace(trainer, "train", self._train)
        self.adapter.replace(trainer, "train_step", self._train_step)

    def close(self) -> None:
        """End the guard; the Trainer closes itself at its end and after a failure."""
        error = sys.exc_info()[0]
        self.adapter.end("end of training" if error is None else f"raised {error.__name__}")

    # What is called in place of the Trainer's methods.

    def _train(self, original: Any) -> Any:
        with self.adapter.shield.guarding("checkpoints"):
            self._checkpoints = TitanCheckpoints(self._trainer, self.adapter, self._run_dir)
            self.adapter.replace(self._trainer.checkpointer, "load", self._checkpoints.load)
        return original()

    def _train_step(self, original: Any, data_iterator: Iterator[Any]) -> Any:
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        if self.adapter.guard is not None:
            data_iterator = self._noting(data_iterator)
        return original(data_iterator)

    def _begin(self) -> None:
        trainer = self._trainer
        if trainer.parallel_dims.pp_enabled:
            log.warning(
                "trimtab: with pipeline parallelism only the last stage has a loss, so this run "
                "is not watched"
            )
            return
        guard = self.adapter.start(
            trainer.model_parts[0],
            trainer.optimizers,
            run_dir=self._run_dir,
            step=trainer.step,
            facts={"dtype": _dtype(trainer), "seed": trainer.config.debug.seed},
            checkpoints=None if self._checkpoints is None else self._checkpoints.register,
        )
        if guard is not None:  # starting has put everything back
            self.adapter.replace(trainer, "train_step", self._train_step)
            self.adapter.replace(trainer, "forward_backward_step", self._forward_backward_step)
            self.adapter.replace(dist_utils, "clip_grad_norm_", self.adapter.clip)
            if self._checkpoints is not None:
                self.adapter.replace(trainer.checkpointer, "save", self._checkpoints.save)
                with self.adapter.shield.guarding("resume"):
                    self._checkpoints.resume(guard)
            self.adapter.begin_data(trainer.dataloader)

    def _noting(self, data_iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of this step, and tell the guard of each, still on the host."""
        begins_step = True
        while True:
            began = time.perf_counter()
            try:
                batch = next(data_iterator)
            except StopIteration:
                return
            seconds = time.perf_counter() - began
            self.adapter.note_batch(batch, begins_step=begins_step, seconds=seconds)
            begins_step = False
            yield batch

    def _forward_backward_step(self, original: Any, **arguments: Any) -> Any:
        loss = original(**arguments)
        guard, shield = self.adapter.guard, self.adapter.shield
        if guard is None or shield.is_down:
            return loss
        with shield.guarding("loss"):
            # Ranks that share a batch (context, tensor parallelism) count its tokens once.
            dims = self._trainer.parallel_dims
            tokens = arguments["labels"].ne(IGNORE_INDEX).sum() / (dims.cp * dims.tp)
            value = _local(loss) * arguments["global_valid_tokens"] / tokens.clamp(min=1)
            guard.record(loss=value, tokens=tokens)
            if self._protects:
                loss = self._finite(loss)
        return loss

    def _finite(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the last finite loss in place of one that is not.

        The Trainer ends a run if a logged loss is not finite, also where the step was discarded.
        """
        value = loss.detach().clone()
        if self._shown is not None:
            value = torch.where(torch.isfinite(value), value, self._shown)
        self._shown = value
        return value


class TitanCheckpoints:
    """Stands between the Trainer and its checkpointer: verdicts, and a resume from a good one."""

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

    def resume(self, guard: Guard) -> None:
        """Restore the guard, with the position of the data, if the checkpoint has it."""
        if self._resumed is not None:
            load_guard_file(self._resumed, guard)

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
        if self.register.is_first_rank:
            state = guard.state_dict(with_random_state=False)  # torchtitan saves none
            write_guard_file(self._folder(step), state)
        if is_last or checkpointer.save_future is None:
            self._add(step)
        else:
            self._in_background = step

    def _add(self, step: int) -> None:
        self.register.add(self._folder(step), step=step + 1)

    def _folder(self, step: int) -> Path:
        return Path(self._checkpointer._create_checkpoint_id(step))


def _local(loss: torch.Tensor) -> torch.Tensor:
    loss = loss.detach()
    to_local = getattr(loss, "to_local", None)
    return loss if to_local is None else to_local()


def _dtype(trainer: Any) -> str | None:
    """Return the precision that FSDP computes in; None if it is a different one."""
    return {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}.get(
        str(trainer.config.training.mixed_precision_param)
    )


class WatchedMetrics(MetricsProcessor):  # type: ignore[misc]
    """torchtitan's metrics, built by the Trainer that is to be watched."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        """torchtitan's settings of metrics, and those of the guard."""

        run_dir: str = ""
        """The folder of the run; `trimtab` in the dump folder if it is empty."""
        mode: str = "observe"
        """As for `trimtab.watch`."""
        settings: dict[str, Any] = field(default_factory=dict)
        """Settings of trimtab that are not the defaults, such as {"live.lag_steps": 1}."""

    def __init__(self, config: Config, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        trainer = find_caller(Trainer)
        self._watcher = None
        if trainer is not None:  # else a validator or a generator builds metrics of its own
            self._watcher = TitanWatcher(trainer, config.run_dir, config.mode, config.settings)

    @property
    def guard(self) -> Guard | None:
        """Return the guard while the Trainer trains, else None."""
        return None if self._watcher is None else self._watcher.adapter.guard

    def close(self) -> None:
        """End the guard with the Trainer."""
        if self._watcher is not None:
            self._watcher.close()
        super().close()


@override(target=MetricsProcessor.Config, description="trimtab watches the run")  # type: ignore[untyped-decorator]
def watched(
    config: MetricsProcessor.Config,
    run_dir: str = "",
    mode: str = "observe",
    settings: dict[str, Any] | None = None,
) -> Any:
    """Replace torchtitan's metrics by metrics that watch their Trainer."""
    return derive(
        config, WatchedMetrics.Config, run_dir=run_dir, mode=mode, settings=settings or {}
    )
