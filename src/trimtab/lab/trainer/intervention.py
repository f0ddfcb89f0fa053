"""Intervention: a change made to a run, either a fault or something harmless that looks like one.

An intervention changes the parts of a run before the loop starts (`attach`), or its settings
(`settings`). The loop has no code for it: as in real runs, the trouble comes in through the batch,
the gradient, the state or the clock.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.core.errors import ConfigError
from trimtab.lab.corpus.data import Batch, Loader, TokenCorpus
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import LabRun, RunClock
from trimtab.lab.trainer.engines import Forward, LabRanks
from trimtab.lab.trainer.train_config import TrainConfig

ChangeBatch = Callable[[int, Batch], Batch]
"""Takes the step and its batch; returns the batch that the run receives."""


class WrappedLoader(Loader):
    """A loader whose batches pass through `wrap` on the way to the run.

    Its state is that of the loader inside: what a checkpoint saves does not depend on `wrap`.
    """

    def __init__(self, loader: Loader, wrap: Callable[[Iterable[Batch]], Iterable[Batch]]) -> None:
        self._loader = loader
        self._wrap = wrap

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._wrap(self._loader))

    def state_dict(self) -> dict[str, int]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._loader.load_state_dict(state)


def current_step(run: LabRun) -> int:
    """Return the current step, on the clock that the intervention goes by (`RunClock`)."""
    # The scheduler's count is saved in checkpoints and resumed.
    return run.clock.time(int(run.scheduler.last_epoch))


def change_batches(run: LabRun, change: ChangeBatch) -> LabRun:
    """Apply `change` to every micro-batch; a batch keeps its change when it is served again."""

    def wrap(batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield change(run.clock.time_of_batch(batch.position), batch)

    return dataclasses.replace(run, loader=WrappedLoader(run.loader, wrap))


def before_step(run: LabRun, act: Callable[[int], None]) -> LabRun:
    """Call `act` once before every step, when the state is still that after the previous step."""
    run.clock.on_step(act)
    return run


def change_output(run: LabRun, forward: Forward, change: Callable[[int, Output], Output]) -> None:
    """Apply `change` to the output of the forward pass, in training only."""

    def hook(module: nn.Module, inputs: Any, output: Output) -> Output:
        return change(current_step(run), output) if torch.is_grad_enabled() else output

    cast(nn.Module, forward).register_forward_hook(hook)


def change_gradient(
    run: LabRun, parameter: nn.Parameter, change: Callable[[int, Tensor], Tensor]
) -> None:
    """Apply `change` to the gradient of a parameter on this rank, as it is computed."""
    parameter.register_hook(lambda gradient: change(current_step(run), gradient))


def scale_lr(run: LabRun, factor: Callable[[int], float]) -> None:
    """Multiply the learning rate by `factor(step)` from the current step on."""
    run.scheduler.lr_lambdas = [
        _scaled(planned, factor, run.clock) for planned in cast(list[Any], run.scheduler.lr_lambdas)
    ]
    rates = zip(run.scheduler.base_lrs, run.scheduler.lr_lambdas, strict=True)
    for group, (base, planned) in zip(run.optimizer.param_groups, rates, strict=True):
        group["lr"] = base * planned(int(run.scheduler.last_epoch))


def _scaled(
    planned: Callable[[int], float], factor: Callable[[int], float], clock: RunClock
) -> Callable[[int], float]:
    return lambda step: planned(step) * factor(clock.time(step))


class Base(StrEnum):
    """The kind of run that an intervention needs."""

    PLAIN = "plain"
    """One process, fp32."""
    FP16 = "fp16"
    """One process, fp16 with a loss scale."""
    RANKS = "ranks"
    """Two ranks under DDP."""
    RESUME = "resume"
    """One process, stopped at the onset and resumed from its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What an intervention may change: a run that is built and loaded, but not yet watched."""

    run: LabRun
    forward: Forward
    ranks: LabRanks
    config: TrainConfig
    corpus: TokenCorpus
    first_step: int
    """0, or the step at which a resumed run continues."""


@dataclass(kw_only=True)
class Intervention:
    """One intervention in one run; all its random numbers are drawn before the run starts."""

    cause: ClassVar[Cause | None]
    """Its cause in the catalogue; None if it is not there."""
    title: ClassVar[str]
    """What it does, in a few words."""
    strength_name: ClassVar[str]
    """The quantity that the severity sets, with its unit."""
    strengths: ClassVar[tuple[float, float]]
    """That quantity at severity 0 and at severity 1; between them the scale is logarithmic."""
    is_whole: ClassVar[bool] = False
    """Whether that quantity is a whole number."""
    is_fault: ClassVar[bool] = True
    """False if it only looks like a fault."""
    base: ClassVar[Base] = Base.PLAIN
    from_start: ClassVar[bool] = False
    """Whether it acts from the first step, so that no part of the run equals its twin."""
    heals: ClassVar[bool] = False
    """Whether its cause disappears at its end, so that the run may recover without help."""
    planned: ClassVar[bool] = False
    """Whether the operator would have announced it; the journal then has an event."""
    lasts: ClassVar[int | None] = None
    """Steps, where their number is fixed; None is until the end of the run."""
    by_data: ClassVar[bool] = False
    """Whether it comes with its batches; else at its steps, whatever is served (`RunClock`)."""
    onset: int
    """The first step that differs."""
    severity: float
    """From 0 (barely visible) to 1 (worst case); `strength` gives its meaning for each kind."""
    seed: int
    truth: dict[str, Any] = field(default_factory=dict, init=False)
    """What it actually did, filled in during the run."""

    def __post_init__(self) -> None:
        if not 0 <= self.severity <= 1:
            raise ConfigError(f"severity must be 0 to 1, got {self.severity}")
        if self.onset < 0:
            raise ConfigError(f"onset must not be negative, got {self.onset}")

    @property
    def steps(self) -> int | None:
        """How many steps it lasts; None is until the end of the run."""
        return self.lasts

    @property
    def strength(self) -> float:
        """The severity in the units of `strength_name`."""
        low, high = self.strengths
        strength = low * (high / low) ** self.severity
        return float(round(strength) if self.is_whole else strength)

    @property
    def end(self) -> int | None:
        """The first step after it; None if it lasts until the end of the run."""
        return None if self.steps is None else self.onset + self.steps

    @property
    def random(self) -> np.random.Generator:
        """A fresh generator for this intervention, equal at each call and on every rank."""
        return np.random.default_rng([self.seed, *type(self).__name__.encode()])

    def covers(self, step: int) -> bool:
        return self.onset <= step and (self.end is None or step < self.end)

    def is_here(self, parts: RunParts) -> bool:
        """Return whether it acts on this rank."""
        return True

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of the run with this intervention; most kinds change nothing here."""
        return config

    def attach(self, parts: RunParts) -> LabRun:
        """Install it into a run; called once per process, before the run is watched.

        A kind that changes only the settings has nothing to do here.
        """
        return parts.run


class StateChange(Intervention):
    """An intervention in weights, optimizer or settings between two steps."""

    is_repeated: ClassVar[bool] = False
    """Whether it acts before each of its steps, not only before the first."""

    def attach(self, parts: RunParts) -> LabRun:
        @torch.no_grad()
        def act(step: int) -> None:
            if step == self.onset or (self.is_repeated and self.covers(step)):
                self.act(parts)

        return before_step(parts.run, act) if self.is_here(parts) else parts.run

    def act(self, parts: RunParts) -> None:
        raise NotImplementedError


class BatchChange(Intervention):
    """An intervention in the batches of its steps."""

    by_data = True

    def attach(self, parts: RunParts) -> LabRun:
        def change(step: int, batch: Batch) -> Batch:
            return self.change(step, batch, parts) if self.covers(step) else batch

        return change_batches(parts.run, change)

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
        raise NotImplementedError


class OutputChange(Intervention):
    """An intervention in the output of the forward pass of its steps."""

    def attach(self, parts: RunParts) -> LabRun:
        def change(step: int, output: Output) -> Output:
            return self.change(step, output, parts) if self.covers(step) else output

        if self.is_here(parts):
            change_output(parts.run, parts.forward, change)
        return parts.run

    def change(self, step: int, output: Output, parts: RunParts) -> Output:
        raise NotImplementedError
