"""TrimtabCallback: what the Lightning Trainer does, seen by a guard.

on_train_start           trimtab.watch
on_train_batch_start     tokens of the batch
on_before_backward       the loss, as `training_step` returned it
the precision plugin     clips, and the norm from before is recorded
optimizer.step(closure)  forward, backward and clipping run inside; the guard's hooks follow
on_validation_end        evaluation loss
state_dict               into every checkpoint
on_train_end, ...        the guard is closed
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch.distributed.fsdp import FullyShardedDataParallel

from trimtab.core.config import Mode
from trimtab.integrations.trainers.adapter import TrainerAdapter
from trimtab.live.shield import log

EVALUATION = "val_loss"
"""The name of the evaluation loss in Lightning's own examples."""


class TrimtabCallback(TrainerAdapter, Callback):
    """Watches a run of the Lightning Trainer."""

    def __init__(
        self,
        run_dir: str | Path | None = None,
        mode: Mode | str = Mode.OBSERVE,
        *,
        tokens: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        """Keep what the user wants; nothing happens before training starts.

        Args:
            run_dir: The folder of the run; default: the logger's, or `default_root_dir`.
            mode: "observe", "protect" or "recover", as for `trimtab.watch`.
            tokens: How many tokens the loss of a batch is the mean of, as a number or a tensor.
                Without it every batch of a step weighs the same.
            options: Further arguments of `trimtab.watch`.
        """
        super().__init__(run_dir, mode, **options)
        self._count_tokens = tokens
        self._tokens: Any = None
        self._scaler: Any = None
        self._measures_norm = False
        self._saved: dict[str, Any] = {}
        """What a checkpoint has of the guard: there is no guard yet when it is loaded."""

    # The life of a guard.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch from here on: model, optimizers and what a checkpoint holds are in place."""
        if not _can_be_watched(trainer):
            return
        self._scaler = getattr(trainer.precision_plugin, "scaler", None)
        guard = self.start(
            trainer.strategy.model or pl_module,
            trainer.optimizers,
            run_dir=trainer.log_dir or trainer.default_root_dir,
            step=trainer.global_step,
            scaler=self._scaler,
            dtype=_dtype(trainer.precision),
            seed=_seed(),
        )
        if guard is None:
            return
        if self._saved:
            guard.load_state_dict(self._saved)
        with self.shield.guarding("on_train_start"):
            self._look_for_clipping(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over."""
        self.end("end of training")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Training was broken off."""
        self.end(f"raised {type(exception).__name__}")

    # What is recorded.

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count the tokens of a batch."""
        self._tokens = None
        if self._count_tokens is not None and not self.shield.is_down:
            with self.shield.guarding("tokens"):
                self._tokens = self._count_tokens(batch)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor
    ) -> None:
        """Record the loss: Lightning has divided it by the accumulation, and multiplied it by the
        loss scale of fp16."""
        if self.guard is None or self.shield.is_down:
            return
        with self.shield.guarding("on_before_backward"):
            value = loss
            if pl_module.automatic_optimization and trainer.accumulate_grad_batches > 1:
                value = value * trainer.accumulate_grad_batches
            scale = getattr(self._scaler, "_scale", None)
            if scale is not None and self._scaler.is_enabled():
                value = value / scale
            self.guard.record(loss=value, tokens=self._tokens)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Measure the norm where clipping does not show it."""
        if self.guard is None or not self._measures_norm or self.shield.is_down:
            return
        with self.shield.guarding("on_before_optimizer_step"):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                self.guard.record(grad_norm=torch.nn.utils.get_total_norm(gradients))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Journal an evaluation, and its loss."""
        if self.guard is None or trainer.sanity_checking or self.shield.is_down:
            return
        with self.shield.guarding("on_validation_end"):
            loss = trainer.callback_metrics.get(EVALUATION)
            self.guard.event("evaluation")
            if loss is not None:
                self.guard.record(eval_loss=loss)

    def _look_for_clipping(self, trainer: Trainer, module: LightningModule) -> None:
        """Take over the one place that clips, or measure before it if that is another one."""
        plugin = trainer.precision_plugin
        is_whole = not isinstance(trainer.strategy.model, FullyShardedDataParallel)
        clips_itself = (
            type(module).configure_gradient_clipping
            is not LightningModule.configure_gradient_clipping
        )
        clips = clips_itself or (trainer.gradient_clip_val or 0) > 0
        if not module.automatic_optimization or not clips or not is_whole:
            return
        by_value = trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE
        is_usual = type(plugin).clip_grad_by_norm is Precision.clip_grad_by_norm
        if is_usual and not by_value:
            self.replace(plugin, "clip_grad_by_norm", partial(self._clip, plugin))
        # A fused optimizer of the user unscales in its update: its gradients are not ready yet.
        unscales = self._scaler is not None and any(
            getattr(optimizer, "_step_supports_amp_scaling", False)
            for optimizer in trainer.optimizers
        )
        self._measures_norm = not unscales and (clips_itself or by_value or not is_usual)

    def _clip(self, plugin: Precision, original: object, optimizer: Any, clip_val: float) -> None:
        """Clip as the plugin does, and keep the norm, which it does not."""
        norm = torch.nn.utils.clip_grad_norm_(plugin.main_params(optimizer), clip_val)
        if self.guard is not None:
            self.guard.record(grad_norm=norm)

    # What is saved.

    def state_dict(self) -> dict[str, Any]:
        """What the guard has learnt; Lightning saves it in every checkpoint."""
        return self._saved if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until training starts: there is no guard before."""
        self._saved = state_dict


def _can_be_watched(trainer: Trainer) -> bool:
    if "DeepSpeed" in type(trainer.strategy).__name__:
        log.warning(
            "trimtab: DeepSpeed clips and moves the weights inside its engine, where trimtab "
            "cannot look; the run is not watched"
        )
        return False
    if not any(group["params"] for o in trainer.optimizers for group in o.param_groups):
        log.warning("trimtab: there is no optimizer with parameters; the run is not watched")
        return False
    if trainer._detect_anomaly:
        log.warning(
            "trimtab: detect_anomaly=True raises in the backward pass of a step that is not "
            "finite, before it can be discarded"
        )
    return True


def _dtype(precision: Any) -> str | None:
    """The precision regime of Lightning's name, such as "bf16-mixed"."""
    name = str(precision)
    if name.startswith("transformer-engine"):
        return "fp8"
    return {"16": "fp16", "bf16": "bf16", "32": "fp32"}.get(name.partition("-")[0])


def _seed() -> int | None:
    """What `seed_everything` was called with."""
    seed = os.environ.get("PL_GLOBAL_SEED", "")
    return int(seed) if seed.isdecimal() else None
