"""The norm from before the Trainer clips.

Lightning clips in its precision plugin and drops the norm. Where it clips by norm, the same call is
made in its place and the norm is kept. Where a module clips by itself, or by value, the norm is
measured before it.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from torch.distributed.fsdp import FullyShardedDataParallel

from trimtab.integrations.trainers.adapter import TrainerAdapter


class ClipRecorder:
    """Records the norm from before clipping, wherever that happens."""

    def __init__(self, adapter: TrainerAdapter, trainer: Trainer, module: LightningModule) -> None:
        self._adapter = adapter
        self._plugin = trainer.precision_plugin
        self._measures = False
        """Whether the norm must be measured."""
        is_whole = not isinstance(trainer.strategy.model, FullyShardedDataParallel)
        usual = LightningModule.configure_gradient_clipping
        clips_itself = type(module).configure_gradient_clipping is not usual
        clips = clips_itself or (trainer.gradient_clip_val or 0) > 0
        if not module.automatic_optimization or not clips or not is_whole:
            return
        by_value = trainer.gradient_clip_algorithm == "value"
        is_usual = type(self._plugin).clip_grad_by_norm is Precision.clip_grad_by_norm
        if is_usual and not by_value:
            adapter.replace(self._plugin, "clip_grad_by_norm", self._clip)
        # A fused optimizer of the user unscales in its update: its gradients are not ready yet.
        unscales = getattr(self._plugin, "scaler", None) is not None and any(
            getattr(optimizer, "_step_supports_amp_scaling", False)
            for optimizer in trainer.optimizers
        )
        self._measures = not unscales and (clips_itself or by_value or not is_usual)

    def before_clipping(self, optimizer: Any) -> None:
        """The gradients are ready, and not clipped yet."""
        if self._measures and self._adapter.guard is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                self._adapter.guard.record(grad_norm=torch.nn.utils.get_total_norm(gradients))

    def _clip(self, original: object, optimizer: Any, clip_val: float) -> None:
        """Clip as `Precision.clip_grad_by_norm` does, and keep the norm."""
        norm = torch.nn.utils.clip_grad_norm_(self._plugin.main_params(optimizer), clip_val)
        if self._adapter.guard is not None:
            self._adapter.guard.record(grad_norm=norm)
