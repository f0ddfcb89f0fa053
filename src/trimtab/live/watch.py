"""`trimtab.watch`: puts a guard around a training run."""

import platform
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from trimtab._version import __version__
from trimtab.core.config import Config, Mode
from trimtab.core.errors import ConfigError, TrimtabError
from trimtab.journal import RunDirectory
from trimtab.live.guard import Guard, NoGuard
from trimtab.live.host.host_side import HostSide
from trimtab.live.loop.watcher import Watcher
from trimtab.live.measure.sensors import Sensors
from trimtab.live.optimizers import find_optimizers, parameters_of
from trimtab.live.protect.gate import Gate
from trimtab.live.protect.words import MOST_REPORTED
from trimtab.live.ranks.boundary import Boundary
from trimtab.live.shield import Shield, log


def watch(
    model: nn.Module,
    optimizer: Any,
    *,
    run_dir: str | Path,
    mode: Mode | str = Mode.OBSERVE,
    config: Config | None = None,
    scaler: Any = None,
    step: int = 0,
    dtype: str | None = None,
    seed: int | None = None,
    link: str | None = None,
    enabled: bool = True,
) -> Guard | NoGuard:
    """Watch a run from here on; use it as a context manager, before `torch.compile`.

    Args:
        model: The model that is trained, wrapped or not.
        optimizer: A torch optimizer, a wrapper of one (Accelerate, torchtitan), or several.
        run_dir: The folder of the run; everything is written to its `trimtab/` folder.
        mode: "observe" changes no bit of what is trained; "protect" keeps bad steps from the
            weights, and makes Adam, AdamW, SGD and Adagrad fused.
        config: Settings; the defaults are meant to be right.
        scaler: The GradScaler of an fp16 run.
        step: The number of the first step; after a resume, where the run goes on.
        dtype: The precision regime (fp32, bf16, fp16, fp8), if it is not that of the parameters.
        seed: The run's seed, for the post-mortem.
        link: Where the run can be looked at, for the post-mortem.
        enabled: False gives a guard that does nothing and has the same face.
    """
    if not enabled:
        return NoGuard(model, step)
    facts = {"mode": _mode(mode).value, "dtype": dtype, "seed": seed, "link": link}
    problem: Exception | None = None
    watcher: Watcher | None = None
    try:
        watcher = _build(model, optimizer, Path(run_dir), config or Config(), scaler, step, facts)
    except Exception as error:  # told below, when the other ranks have been asked
        problem = error
    has_failed = _has_any_rank_failed(problem, model)
    if watcher is not None:
        if not has_failed:
            return Guard(model, watcher)
        watcher.close("another rank could not begin")
    if isinstance(problem, TrimtabError):  # the user can mend it, and nothing has been trained yet
        raise problem
    log.error("trimtab could not begin and steps aside; training goes on", exc_info=problem)
    return NoGuard(model, step)


def _build(
    model: nn.Module,
    optimizer: Any,
    run_dir: Path,
    config: Config,
    scaler: Any,
    step: int,
    facts: dict[str, Any],
) -> Watcher:
    optimizers = find_optimizers(optimizer)
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    live = config.live
    shield = Shield()
    sensors = Sensors(model, optimizers, world, shield, activations=live.activations)
    capacity = sensors.capacity + MOST_REPORTED
    boundary = Boundary(sensors.device, live.lag_steps, capacity)
    host = None
    if rank == 0:
        manifest = _manifest(model, optimizers, config, world, facts)
        host = HostSide(RunDirectory(run_dir), config, manifest, first_step=step)
    watcher = Watcher(
        optimizers,
        sensors,
        boundary,
        host,
        shield,
        telemetry_every=live.telemetry_every,
        first_step=step,
        scaler=scaler,
    )
    if facts["mode"] == Mode.PROTECT:
        tell = watcher.tell_promotion
        watcher.protect(Gate(model, optimizers, boundary, config.gate, sensors.device, tell))
    return watcher


def _mode(name: Mode | str) -> Mode:
    try:
        return Mode(name)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise ConfigError(f"mode is {name!r}; it must be one of: {known}") from None


def _manifest(
    model: nn.Module,
    optimizers: tuple[Optimizer, ...],
    config: Config,
    world: int,
    facts: dict[str, Any],
) -> dict[str, Any]:
    parameters = parameters_of(optimizers)
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return {
        "schema": 1,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trimtab": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "world": world,
        "model": type(model).__name__,
        "num_parameters": sum(parameter.numel() for parameter in parameters),
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
        "config": config.to_dict(),
        **facts,
        "dtype": facts["dtype"] or names.get(parameters[0].dtype),
    }


def _has_any_rank_failed(problem: Exception | None, model: nn.Module) -> bool:
    """Whether any rank could not begin: one that watches alone would wait for the others."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return problem is not None
    device = next(model.parameters()).device
    failed = torch.tensor(0.0 if problem is None else 1.0, device=device)
    dist.all_reduce(failed)
    return bool(failed.item() > 0)
