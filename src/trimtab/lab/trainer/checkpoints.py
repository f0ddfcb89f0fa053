"""Checkpoints: all that a run needs to go on as if nothing had happened.

    RUN/checkpoints/step-00000100/
        __0_0.distcp ... .metadata    weights, optimizer state, random state: torch's DCP
        run.json                      step, schedule, loss scale, data position, settings

A name appears only when everything in it is written. A checkpoint is loaded by any number of ranks
and any engine. DCP would unpickle whatever is not a tensor, so it only gets tensors; the rest is
JSON, which keeps every bit of a float.
"""

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.lr_scheduler import LambdaLR

from trimtab.core.errors import ConfigError, LabError
from trimtab.lab.corpus.data import Loader
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.trainer.engines import Ranks

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
"""Optimizer state by parameter name: `state.norm.weight.exp_avg`. Groups and order may change."""

_RUN = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All parts of a run that change from step to step."""

    model: Gpt
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    scaler: torch.amp.GradScaler
    loader: Loader
    identity: dict[str, Any]
    """The settings that a run keeps for its whole life."""


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder, if there is any."""
    return max(folder.glob("step-*"), default=None)  # padded with zeros: names sort like numbers


def save(folder: Path, step: int, run: Run, ranks: Ranks) -> Path:
    """Write the state behind so many steps; every rank must call this, and step at least once."""
    path, draft = folder / f"step-{step:08d}", folder / f".draft-{step:08d}"
    if ranks.rank == 0:
        shutil.rmtree(draft, ignore_errors=True)  # of a run that was killed while writing
        draft.mkdir(parents=True)
    ranks.barrier()
    with _without_advice():
        state_dict_saver.save(_tensors(run), checkpoint_id=draft)
    if ranks.rank == 0:
        told = {
            "step": step,
            "scheduler": run.scheduler.state_dict(),
            "scaler": run.scaler.state_dict(),
            "loader": run.loader.state_dict(),
            "identity": run.identity,
        }
        (draft / _RUN).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)  # of an earlier attempt at the same step
        draft.rename(path)
    ranks.barrier()
    return path


def load(path: Path, run: Run) -> int:
    """Put a checkpoint into the parts of a run; return the number of steps behind it.

    Call it before the run is watched: DCP moves a fresh optimizer once to make its state.
    """
    told = _read(path)
    _compare(told["identity"], json.loads(json.dumps(run.identity)))
    model, optimizer = _model_state(run), _optimizer_state(run)
    random = torch.get_rng_state()
    wanted = {"model": model, "optimizer": _only_tensors(optimizer), "random": random}
    try:
        with _without_advice():
            state_dict_loader.load(wanted, checkpoint_id=path)
    except CheckpointException as error:
        raise LabError(f"{path} cannot be loaded: {error}") from error
    # Tensors were filled in place; what is no tensor is what this optimizer was made with.
    set_model_state_dict(run.model, model)
    set_optimizer_state_dict(run.model, run.optimizer, optimizer, options=_FLAT)
    torch.set_rng_state(random)
    run.scheduler.load_state_dict(told["scheduler"])
    # The scheduler writes its rates at its next step, and the optimizer needs them before.
    for group, lr in zip(run.optimizer.param_groups, run.scheduler.get_last_lr(), strict=True):
        group["lr"] = lr
    run.scaler.load_state_dict(told["scaler"])
    run.loader.load_state_dict(told["loader"])
    return int(told["step"])


@contextmanager
def _without_advice() -> Iterator[None]:
    """In a single process DCP guesses aloud that this is meant, and it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _tensors(run: Run) -> dict[str, Any]:
    # One random state for all ranks: nothing in the loop draws, and all were seeded alike.
    return {
        "model": _model_state(run),
        "optimizer": _only_tensors(_optimizer_state(run)),
        "random": torch.get_rng_state(),
    }


def _model_state(run: Run) -> dict[str, Any]:
    return get_model_state_dict(run.model)


def _optimizer_state(run: Run) -> dict[str, Any]:
    return get_optimizer_state_dict(run.model, run.optimizer, options=_FLAT)


def _only_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _read(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((path / _RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{path} is not a checkpoint of the lab: {error}") from error
    return told


def _compare(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue a run with other settings: it would be neither of both."""
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise ConfigError(
                f"the run was begun with {name} {saved.get(name)}, now it is {wanted.get(name)}; "
                "resume with the same settings or begin another run"
            )
