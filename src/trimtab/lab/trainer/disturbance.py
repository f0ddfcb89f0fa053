"""Disturbance: something that is done to a run, a fault or something harmless that looks like one.

A disturbance lays its hands on the parts of a run before the loop begins (`attach`) or on its
settings (`settings`). The loop itself does not know of it: it is broken the way real ones are, from
outside, by the batch, the gradient, the state or the clock that it gets.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from trimtab.core.causes import Cause
from trimtab.core.errors import ConfigError
from trimtab.lab.corpus.shards import TokenCorpus
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.engines import Forward, Ranks
from trimtab.lab.trainer.train_config import TrainConfig


class Base(StrEnum):
    """What a run has to be for a disturbance to be possible in it."""

    PLAIN = "plain"
    """One process, fp32."""

    FP16 = "fp16"
    """One process, fp16 with a loss scale."""

    RANKS = "ranks"
    """Two ranks under DDP."""

    RESUME = "resume"
    """One process that is stopped at the onset and resumed from its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a disturbance may lay its hands on: a run that is built, loaded, and not yet watched."""

    run: Run
    forward: Forward
    ranks: Ranks
    config: TrainConfig
    corpus: TokenCorpus
    first_step: int
    """0, or where a resumed run goes on."""


@dataclass(kw_only=True)
class Disturbance(ABC):
    """One disturbance of one run, its numbers drawn and settled before the run begins."""

    cause: ClassVar[Cause | None]
    """Its place in the catalogue; None if it has none."""

    title: ClassVar[str]
    """What it does, in a few words."""

    strength_name: ClassVar[str]
    """What its severity stands for."""

    is_fault: ClassVar[bool] = True
    """False for what only looks like a fault."""

    base: ClassVar[Base] = Base.PLAIN

    from_start: ClassVar[bool] = False
    """Whether it is in the run from its first step on, so that no part of it is like its twin."""

    heals: ClassVar[bool] = False
    """Whether its cause is gone when it ends, and a run may come back by itself."""

    planned: ClassVar[bool] = False
    """Whether who runs the job would have announced it; then it is an event in the journal."""

    onset: int
    """The first step that is different."""

    severity: float
    """0 is hardly there, 1 is as bad as it gets; each kind says what that means."""

    seed: int

    truth: dict[str, Any] = field(default_factory=dict, init=False)
    """What it really did, filled in while it does it."""

    def __post_init__(self) -> None:
        if not 0 <= self.severity <= 1:
            raise ConfigError(f"severity must be 0 to 1, got {self.severity}")
        if self.onset < 0:
            raise ConfigError(f"onset must not be negative, got {self.onset}")

    @property
    def steps(self) -> int | None:
        """How many steps it lasts; None is until the end."""
        return None

    @property
    def strength(self) -> float:
        """The severity in the units of `strength_name`."""
        return self.severity

    @property
    def end(self) -> int | None:
        """The first step that it does not touch any more; None if it stays."""
        return None if self.steps is None else self.onset + self.steps

    @property
    def random(self) -> np.random.Generator:
        """Numbers of its own, the same at each call and on every rank."""
        return np.random.default_rng([self.seed, *type(self).__name__.encode()])

    def covers(self, step: int) -> bool:
        """Whether a step lies between onset and end."""
        return self.onset <= step and (self.end is None or step < self.end)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """The settings of the run that has it; most leave them alone."""
        return config

    @abstractmethod
    def attach(self, parts: Parts) -> Run:
        """Get hold of a run; called once per process, before it is watched."""


def between(low: float, high: float, severity: float) -> float:
    """The strength that lies at a severity between the mildest and the worst, by ratio."""
    return float(low * (high / low) ** severity)
