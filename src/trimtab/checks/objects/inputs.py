"""Inputs: the objects that the user gives, checked once; from a call, or from `module:function`."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trimtab.core.errors import ConfigError
from trimtab.live.optimizers import find_optimizers
from trimtab.state.batches import map_tensors
from trimtab.state.sharded_types import is_fsdp2

Loss = Callable[[nn.Module, Any], torch.Tensor]
"""Takes the model and a batch as the loader gives it; returns the loss of the user's loop."""


def model_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss that the model returns, as models of `transformers` do."""
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


@dataclass(frozen=True)
class Inputs:
    """What is checked; made from the arguments of `trimtab.check`, whose docs explain them.

    Raises ConfigError for what cannot be checked or restored.
    """

    model: nn.Module
    optimizer: InitVar[Any]
    scheduler: InitVar[Any] = None
    loader: Any = None
    loss: Loss = model_loss
    steps: int | None = None
    clip_norm: float | None = None
    pretrained: bool = False
    optimizers: tuple[Optimizer, ...] = field(init=False)
    schedulers: tuple[Any, ...] = field(init=False)

    def __post_init__(self, optimizer: Any, scheduler: Any) -> None:
        if not isinstance(self.model, nn.Module):
            raise ConfigError(f"model must be a torch module, got {type(self.model).__name__}")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps must be 1 or more, got {self.steps}")
        loader = self.loader
        has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        if loader is not None and not has_state and hasattr(loader, "__next__"):
            raise ConfigError(
                "loader is an iterator, so a batch that is drawn is lost to the run; pass the "
                "loader itself, or one with state_dict and load_state_dict"
            )
        made = {
            "model": _unwrapped(self.model),
            "optimizers": find_optimizers(optimizer),
            "schedulers": _schedulers(scheduler),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)  # the class is frozen for everybody else

    @property
    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def held(self) -> list[nn.Parameter]:
        return [parameter for group in self.groups for parameter in group["params"]]

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside a wrapper; it has the same parameters.

    A compiled graph hides its operations. Under DDP, ranks whose passes differ would wait forever.
    """
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, DistributedDataParallel):
        model = model.module
    if any(map(is_fsdp2, model.modules())):
        raise ConfigError("a sharded model cannot be tested; call check before fully_shard")
    return model


NAMES = tuple(inspect.signature(Inputs).parameters)
"""What a setup may hold: the arguments of `trimtab.check`."""

Setup = dict[str, Any]


def find_setup(name: str) -> Callable[..., Any]:
    """Import the function of `module:function`; the current folder is searched first."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"{name!r} is not module:function, such as train:setup")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise  # a package that the user's module needs
        raise ConfigError(
            f"no module {module_name!r} here or among the installed ones; run the command in its "
            "folder, or install it"
        ) from None
    finally:
        sys.path.pop(0)
    found = getattr(module, function_name, None)
    if not callable(found):
        raise ConfigError(
            f"module {module_name!r} has no function {function_name!r}; give module:function"
        )
    return found  # type: ignore[no-any-return]


def call_setup(make: Callable[..., Any], *arguments: int) -> Any:
    """Call the function; raise ConfigError if it takes other arguments, or fails."""
    name = getattr(make, "__name__", "the function")
    try:
        inspect.signature(make).bind(*arguments)
    except TypeError:
        how = "called with the width, as with --widths" if arguments else "called without arguments"
        raise ConfigError(
            f"{name}{inspect.signature(make)} cannot be {how}; give a function that can"
        ) from None
    except ValueError:  # a callable without a signature
        pass
    try:
        return make(*arguments)
    except Exception as error:
        raise ConfigError(
            f"{name} raised {type(error).__name__}: {error}; call it by itself to see where"
        ) from error


def as_setup(given: Any) -> Setup:
    """Return what a function returned as arguments of `trimtab.check`."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"the function returns a {type(given).__name__}; it must return a dict with model, "
            f"optimizer and any of {', '.join(NAMES[2:])}"
        )
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise ConfigError(f"unknown: {', '.join(unknown)}; a setup has {', '.join(NAMES)}")
    missing = [name for name in ("model", "optimizer") if name not in given]
    if missing:
        raise ConfigError(f"the function returns no {' and no '.join(missing)}; add it to its dict")
    return dict(given)


def _schedulers(given: Any) -> tuple[Any, ...]:
    """Return the schedulers in one, several or none."""
    if given is None:
        return ()
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for scheduler in several:
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(scheduler, method, None)):
                raise ConfigError(
                    f"scheduler is a {type(scheduler).__name__} without {method}, so it cannot be "
                    "set back; give an object with state_dict and load_state_dict"
                )
    return several
