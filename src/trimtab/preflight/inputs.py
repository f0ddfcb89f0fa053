"""Inputs: the objects that the user gives, checked once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trimtab.core.errors import ConfigError
from trimtab.live.optimizers import find_optimizers
from trimtab.live.recover.inputs import as_schedulers
from trimtab.preflight.measure.batches import map_tensors

Loss = Callable[[nn.Module, Any], torch.Tensor]
"""Takes the model and a batch as the loader gives it; returns the loss of the user's loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What is tested."""

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    schedulers: tuple[Any, ...]
    loader: Any
    """None if the user gave none."""
    loss: Loss
    steps: int | None
    """Optimizer updates of the whole run."""
    clip_norm: float | None
    is_pretrained: bool
    """Whether the weights are trained already: rules on a fresh init do not hold then."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: Any,
        *,
        scheduler: Any = None,
        loader: Any = None,
        loss: Loss | None = None,
        steps: int | None = None,
        clip_norm: float | None = None,
        pretrained: bool = False,
    ) -> "Inputs":
        """The objects as they are; raises ConfigError for what cannot be tested or put back."""
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a torch module, got {type(model).__name__}")
        if steps is not None and steps < 1:
            raise ConfigError(f"steps must be 1 or more, got {steps}")
        has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        if loader is not None and not has_state and iter_is_itself(loader):
            raise ConfigError(
                "loader is an iterator, so a batch that is drawn is lost to the run; pass the "
                "loader itself, or one with state_dict and load_state_dict"
            )
        return cls(
            model=_unwrapped(model),
            optimizers=find_optimizers(optimizer),
            schedulers=as_schedulers(scheduler),
            loader=loader,
            loss=loss or model_loss,
            steps=steps,
            clip_norm=clip_norm,
            is_pretrained=pretrained,
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module inside a wrapper; it has the same parameters.

    A compiled graph hides its operations. Under DDP, ranks whose passes differ would wait forever.
    """
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, DistributedDataParallel):
        model = model.module
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ConfigError("a sharded model cannot be tested; call preflight before fully_shard")
    return model


def iter_is_itself(loader: Any) -> bool:
    """Whether this is an iterator, which can be gone through only once."""
    return hasattr(loader, "__next__")


def model_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss that the model returns, as models of `transformers` do."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = map_tensors(batch, lambda tensor: tensor.to(device))
    if isinstance(batch, Mapping):
        output = model(**batch)
    elif isinstance(batch, list | tuple):
        output = model(*batch)
    else:
        output = model(batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConfigError(
            f"the model returns a {type(output).__name__} without a loss; pass "
            "loss=function(model, batch)"
        )
    return loss
