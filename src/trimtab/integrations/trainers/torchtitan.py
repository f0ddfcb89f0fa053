"""TitanWatcher: a guard in torchtitan's Trainer.

    train                   checkpoints: it resumes from the last good one
    train_step              makes the guard, at the first step; batches come by way of it
    forward_backward_step   loss and tokens of each micro-batch
    dist_utils.clip_grad_norm_   the norm before clipping
    close                   all of it is put back

A CUDA graph holds what runs inside `forward_backward_step`: there Python runs once, at its capture.
So losses are recorded outside, and at once, because the next replay overwrites them.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.distributed import utils as dist_utils

from trimtab.core.config import Config, Mode
from trimtab.integrations.trainers.adapter import TrainerAdapter
from trimtab.integrations.trainers.torchtitan_checkpoints import TitanCheckpoints
from trimtab.integrations.trainers.used_gradients import hidden_gradients
from trimtab.live.shield import log


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
        self._position: int | None = None
        """The position of the first batch, until it is handed out."""
        self.adapter.replace(trainer, "train", self._train)
        self.adapter.replace(trainer, "train_step", self._train_step)

    def close(self) -> None:
        """Training is over, or was broken off: the Trainer closes itself in both cases."""
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
            data_iterator = self._batches(data_iterator)
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
            counters=trainer,  # its state_dict has the step and the tokens seen
            scheduler=list(trainer.lr_schedulers.schedulers),
            dtype=_dtype(trainer),
            seed=trainer.config.debug.seed,
            checkpoints=None if self._checkpoints is None else self._checkpoints.register,
        )
        if guard is not None:  # starting has put everything back
            self.adapter.replace(trainer, "train_step", self._train_step)
            self.adapter.replace(trainer, "forward_backward_step", self._forward_backward_step)
            self.adapter.replace(dist_utils, "clip_grad_norm_", self._clip)
            if self._checkpoints is not None:
                self.adapter.replace(trainer.checkpointer, "save", self._checkpoints.save)
                with self.adapter.shield.guarding("resume"):
                    self._position = self._checkpoints.resume(guard)

    def _batches(self, data_iterator: Iterator[Any]) -> Iterator[Any]:
        """The batches of this step, by way of the guard; the run may have gone back."""
        trainer, metrics = self._trainer, self._trainer.metrics_processor
        num_fetched = len(metrics.data_loading_times)
        with hidden_gradients(trainer.model_parts[0].parameters()):
            position, self._position = self._position, None
            batches = self.adapter.next_batches(
                trainer.dataloader,
                data_iterator,
                trainer.gradient_accumulation_steps,
                position=position,
            )
        # Batches that are served again do not pass the Trainer's counting of its log line.
        for _, labels in batches[len(metrics.data_loading_times) - num_fetched :]:
            metrics.data_loading_times.append(0.0)
            metrics.ntokens_since_last_log += labels.numel()
        # After them the Trainer's own iterator, which says in its way that the data has ended.
        return itertools.chain(batches, data_iterator)

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
        """The Trainer ends a run if the loss of a logged step is not finite, also where the step
        was discarded: it is shown the last finite one."""
        value = loss.detach().clone()
        if self._shown is not None:
            value = torch.where(torch.isfinite(value), value, self._shown)
        self._shown = value
        return value

    def _clip(self, original: Any, *arguments: Any, **options: Any) -> Any:
        norm = original(*arguments, **options)
        if self.adapter.guard is not None:
            self.adapter.guard.record(grad_norm=norm)
        return norm


def _local(loss: torch.Tensor) -> torch.Tensor:
    loss = loss.detach()
    to_local = getattr(loss, "to_local", None)
    return loss if to_local is None else to_local()


def _dtype(trainer: Any) -> str | None:
    """The precision that FSDP computes in."""
    return {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}.get(
        str(trainer.config.training.mixed_precision_param)
    )
