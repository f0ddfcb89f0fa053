"""Checkpoints: the full state of a run, so that a resumed run is bit-identical.

RUN/checkpoints/step-00000100.pt has weights, optimizer state, random state, schedule, loss scale,
data position and settings; it is read without unpickling objects. A file gets its final name only
once it is complete. One process and any number of ranks can load it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
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


def save(folder: Path, step: int, run: LabRun, ranks: LabRanks) -> None:
    """Write the state after `step` steps; all ranks must call this."""
    if ranks.rank == 0:
        state = {
            "step": step,
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict()["state"],
            # One random state for all ranks: all have the same seed, and the loop draws no numbers.
            "random": torch.get_rng_state(),
            "scheduler": run.scheduler.state_dict(),
            "scaler": run.scaler.state_dict(),
            "loader": run.loader.state_dict(),
            "identity": _plain(run.identity),
        }
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"draft-{step:08d}.pt"
        torch.save(state, draft)
        draft.rename(folder / f"step-{step:08d}.pt")
    ranks.barrier()


def load(path: Path, run: LabRun) -> int:
    """Load a checkpoint into the parts of a run; return the number of steps it has done."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        identity = state["identity"]
    except Exception as error:  # torch has no error of its own for a torn or a foreign file
        raise LabError(f"{path} cannot be loaded: {error}") from error
    _compare(identity, _plain(run.identity))
    run.model.load_state_dict(state["model"])
    # The options of the groups are those that this optimizer was created with.
    groups = run.optimizer.state_dict()["param_groups"]
    run.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
    torch.set_rng_state(state["random"])
    run.scheduler.load_state_dict(state["scheduler"])
    # The scheduler sets learning rates only at its next step; the optimizer needs them before.
    for group, lr in zip(run.optimizer.param_groups, run.scheduler.get_last_lr(), strict=True):
        group["lr"] = lr
    run.scaler.load_state_dict(state["scaler"])
    run.loader.load_state_dict(state["loader"])
    return int(state["step"])


def _plain(identity: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def _compare(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue a run with different settings: the result would be neither run."""
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise ConfigError(
                f"the run was started with {name} {saved.get(name)}, now it is {wanted.get(name)}; "
                "resume with the same settings or start a new run"
            )
