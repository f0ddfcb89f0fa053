"""Engine: what trimtab needs to know of a DeepSpeedEngine, read in one place."""

import sys
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core.config import Mode
from trimtab.core.errors import ConfigError, TrimtabError
from trimtab.live.deepspeed.seam import Seam, seams_of
from trimtab.live.optimizers import find_optimizers
from trimtab.live.shield import log


def is_engine(model: Any) -> bool:
    """Return whether this is an engine of DeepSpeed, without importing DeepSpeed."""
    runtime = sys.modules.get("deepspeed.runtime.engine")
    return runtime is not None and isinstance(model, runtime.DeepSpeedEngine)


def open_engine(model: Any) -> "tuple[Engine | None, bool]":
    """Return an engine and False, None and True if it could not be looked at; None and False if
    the model is none. Raises ConfigError for one that cannot be watched."""
    try:
        return (Engine(model) if is_engine(model) else None), False
    except TrimtabError:  # the user can fix it, and nothing has been trained yet
        raise
    except Exception:
        log.exception("trimtab could not look at the engine and steps aside; training continues")
        return None, True


class Engine:
    """A DeepSpeedEngine that is watched."""

    def __init__(self, engine: Any) -> None:
        """Look at an engine; raises ConfigError for one that cannot be watched."""
        if hasattr(engine, "train_batch"):
            raise ConfigError(
                "a PipelineEngine steps inside train_batch and cannot be watched; "
                "`trimtab diagnose` reads its log"
            )
        optimizer = getattr(engine, "optimizer", None)
        inside = optimizer if isinstance(optimizer, Optimizer) else _inside(optimizer)
        if inside is None:
            raise ConfigError(
                "the engine has no optimizer; pass one to deepspeed.initialize, or name it in its "
                "configuration"
            )
        self.engine = engine
        self.optimizer: Any = optimizer
        """What the engine steps: of ZeRO, of fp16 or bf16, or one of torch."""
        self.module: nn.Module = engine.module
        self.optimizers: tuple[Optimizer, ...] = find_optimizers(inside)
        """The optimizers of torch inside, for their options; DeepSpeed steps them in pieces."""
        self.is_plain = optimizer is inside
        """Whether it steps a plain optimizer, as without ZeRO in fp32: its gradients are those of
        the model, and it is watched as outside of an engine."""
        seams = [] if self.is_plain else seams_of(optimizer)
        self._why_not_protected = None if self.is_plain else _why_not_asked(optimizer, seams)
        self.seams: list[Seam] = seams if self._why_not_protected is None else []
        """Where its optimizer asks before every update."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.engine.device)

    @property
    def trained(self) -> list[torch.Tensor]:
        """The parameters of the model; under ZeRO 3 they are empty between forward passes."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @property
    def num_parameters(self) -> int:
        return sum(int(getattr(p, "ds_numel", p.numel())) for p in self.trained)

    def mode(self, wanted: Mode) -> Mode:
        """Return the mode in which it can be watched; raises ConfigError for "recover"."""
        if wanted is Mode.RECOVER:
            raise ConfigError(
                'mode="recover" cannot restore the sharded state inside a DeepSpeed engine; use '
                'mode="protect", and its checkpoints to go back'
            )
        why = self._why_not_protected
        if wanted is Mode.PROTECT and why is not None:
            log.warning("trimtab: %s: the run is observed, not protected", why)
            return Mode.OBSERVE
        return wanted

    @property
    def loss_scale(self) -> float:
        """The scale of the gradients now; 1 outside of fp16.

        Source: DeepSpeed 0.19.8, whose `engine.backward` scales for the optimizers of ZeRO only; in
        fp16 without ZeRO the norm that its optimizer asks with is not scaled.
        """
        optimizer = self.optimizer
        if not hasattr(optimizer, "scale_if_loss"):
            return 1.0
        config = getattr(optimizer, "loss_scale_config", optimizer)
        for name in ("cur_scale", "loss_scale"):
            if (scale := getattr(config, name, None)) is not None:
                return float(scale)
        return 1.0

    @property
    def has_loss_scale(self) -> bool:
        return bool(self.engine.fp16_enabled())

    @property
    def has_skipped(self) -> bool:
        """Whether the optimizer has just skipped its update, for whatever reason."""
        return bool(getattr(self.optimizer, "overflow", False))


def _inside(optimizer: Any) -> Optimizer | None:
    """Return the optimizer of torch that one of DeepSpeed holds."""
    found = getattr(optimizer, "optimizer", None)
    return found if isinstance(found, Optimizer) else None


def _why_not_asked(optimizer: Any, seams: list[Seam]) -> str | None:
    """Return why the optimizer would apply an update without asking; None if it asks."""
    if not seams:
        version = getattr(sys.modules.get("deepspeed"), "__version__", "")
        return f"{type(optimizer).__name__} of DeepSpeed {version} asks nobody before an update"
    if not getattr(optimizer, "compute_grad_norm", True):
        return "with compute_grad_norm=false DeepSpeed asks nobody before an update"
    is_bf16 = getattr(optimizer, "dtype", None) == torch.bfloat16
    if is_bf16 and not getattr(optimizer, "check_grad_overflow", True):
        return "with bf16.check_grad_overflow=false DeepSpeed asks nobody before an update"
    return None
