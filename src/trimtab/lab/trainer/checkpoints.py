"""Checkpoints: the full state of a run, so that a resumed run is bit-identical.

    RUN/checkpoints/step-00000100/
        __0_0.distcp ... .metadata    weights, optimizer state, random state: torch's DCP
        run.json                      step, schedule, loss scale, data position, settings

A folder gets its final name only once it is complete. Any number of ranks and any engine can load a
checkpoint. DCP would unpickle everything that is not a tensor, so it gets tensors only; the rest is
JSON, which keeps every bit of a float.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from trimtab.lab.trainer.engines import LabRanks


class RunClock:
    """The time of a run, in steps or by its batches, as its intervention needs it.

    A fault of the data comes with its batches, and not if they are skipped; one of code, settings
    or schedule comes at its step, whatever is served. In a run that skips nothing both are equal.
    """

    def __init__(self, accumulate: int = 1) -> None:
        self.by_data = False
        self.num_skipped = 0
        """Batches that the loader skips at its start: the loop counts only those it is served."""
        self._accumulate = accumulate
        self._offset = 0
        self._probed: int | None = None
        """The time of a batch that is run again."""
        self._before_step: list[Callable[[int], None]] = []

    def on_step(self, act: Callable[[int], None]) -> None:
        self._before_step.append(act)

    def begin(self, step: int, position: int) -> None:
        now = self.time_of_batch(position + self.num_skipped) if self.by_data else step
        self._offset = now - step
        for act in self._before_step:
            act(now)

    def time_of_batch(self, position: int) -> int:
        """Return the step of a batch in a run that skips none."""
        return position // self._accumulate

    def time(self, step: int) -> int:
        return step + self._offset if self._probed is None else self._probed

    @contextmanager
    def at_batch(self, position: int) -> Iterator[None]:
        """Set the clock to the batch of another step during a forward pass."""
        if self.by_data:
            self._probed = self.time_of_batch(position)
        try:
            yield
        finally:
            self._probed = None


_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
"""Optimizer state by parameter name: `state.norm.weight.exp_avg`. Groups and order may change."""

_RUN = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """The parts of a run that change from step to step."""

    model: Gpt
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    scaler: torch.amp.GradScaler
    loader: Loader
    identity: dict[str, Any]
    """The settings that cannot change during a run."""
    clock: RunClock = field(default_factory=RunClock)
    """What an intervention counts."""


def latest(folder: Path) -> Path | None:
    return max(folder.glob("step-*"), default=None)  # padded with zeros: names sort like numbers


def save(folder: Path, step: int, run: LabRun, ranks: LabRanks) -> Path:
    """Write the state after `step` steps; all ranks must call this, after at least one step."""
    path, draft = folder / f"step-{step:08d}", folder / f".draft-{step:08d}"
    if ranks.rank == 0:
        shutil.rmtree(draft, ignore_errors=True)  # left by a run that was killed while writing
        draft.mkdir(parents=True)
    ranks.barrier()
    with _ignore_single_process_warning():
        state_dict_saver.save(_tensors(run), checkpoint_id=draft)
    if ranks.rank == 0:
        state = {
            "step": step,
            "scheduler": run.scheduler.state_dict(),
            "scaler": run.scaler.state_dict(),
            "loader": run.loader.state_dict(),
            "identity": run.identity,
        }
        (draft / _RUN).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)  # from an earlier attempt at the same step
        draft.rename(path)
    ranks.barrier()
    return path


def load(path: Path, run: LabRun) -> int:
    """Load a checkpoint into the parts of a run; return the number of steps it has done.

    Call it before the run is watched: DCP steps a fresh optimizer once to create its state.
    """
    state = _read(path)
    _compare(state["identity"], json.loads(json.dumps(run.identity)))
    model, optimizer = _model_state(run), _optimizer_state(run)
    random = torch.get_rng_state()
    wanted = {"model": model, "optimizer": _only_tensors(optimizer), "random": random}
    try:
        with _ignore_single_process_warning():
            state_dict_loader.load(wanted, checkpoint_id=path)
    except CheckpointException as error:
        raise LabError(f"{path} cannot be loaded: {error}") from error
    # Tensors were filled in place; other values are those that this optimizer was created with.
    set_model_state_dict(run.model, model)
    set_optimizer_state_dict(run.model, run.optimizer, optimizer, options=_FLAT)
    torch.set_rng_state(random)
    run.scheduler.load_state_dict(state["scheduler"])
    # The scheduler sets learning rates only at its next step; the optimizer needs them before.
    for group, lr in zip(run.optimizer.param_groups, run.scheduler.get_last_lr(), strict=True):
        group["lr"] = lr
    run.scaler.load_state_dict(state["scaler"])
    run.loader.load_state_dict(state["loader"])
    return int(state["step"])


@contextmanager
def _ignore_single_process_warning() -> Iterator[None]:
    """DCP warns when it runs in a single process, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _tensors(run: LabRun) -> dict[str, Any]:
    # One random state for all ranks: all have the same seed, and the loop draws no numbers.
    return {
        "model": _model_state(run),
        "optimizer": _only_tensors(_optimizer_state(run)),
        "random": torch.get_rng_state(),
    }


def _model_state(run: LabRun) -> dict[str, Any]:
    return get_model_state_dict(run.model)


def _optimizer_state(run: LabRun) -> dict[str, Any]:
    return get_optimizer_state_dict(run.model, run.optimizer, options=_FLAT)


def _only_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((path / _RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{path} is not a checkpoint of the lab: {error}") from error
    return state


def _compare(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue a run with different settings: the result would be neither run."""
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise ConfigError(
                f"the run was started with {name} {saved.get(name)}, now it is {wanted.get(name)}; "
                "resume with the same settings or start a new run"
            )
