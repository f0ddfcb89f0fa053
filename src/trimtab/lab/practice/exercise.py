"""Exercise: a run with something wrong in it, or nothing, and the step at which somebody is asked.

A seed decides all of it. Where the trouble lives decides what a restart does about it:

in some batches     comes again with the same batches; skipping them leaves it behind
once, in a machine  is gone after a restart, but not out of what was saved since
in the settings     comes again at the same step, whatever is restored
"""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from trimtab.core.errors import ConfigError
from trimtab.lab.scenarios.catalogue import kind_named
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.disturbance import Base, Disturbance
from trimtab.lab.trainer.train_config import TrainConfig

STEPS = 240
"""A run of some seconds, long enough for 100 healthy steps in front of the trouble."""

FEWEST_STEPS = 48
_CHECKPOINTS = 8
"""In a run: with 240 steps one every 30, so that the newest may be younger than the trouble, and
going back has its price."""

_LR = 4e-3
"""The best of 4e-3, 8e-3, 1.6e-2 and 3.2e-2 over 240 steps, clipped and not; 1e-3 is worse too (a
held-out loss of 4.88 against 4.56). Where the rate is right, a higher one does harm."""

_EVAL_BATCHES = 8

_HARMLESS_SHARE = 0.25
"""A learner who always acts must be wrong now and then."""


class Home(StrEnum):
    """Where a disturbance lives."""

    BATCHES = "in some batches"
    ONCE = "once, in a machine"
    SETTINGS = "in the code or the settings"


_SOON = (0.02, 0.05)
_LATE = (0.10, 0.15)
"""How long after the onset somebody is asked, by the length of the run: a spike is seen at once,
what is silent takes 24 to 36 steps of 240 to show."""


@dataclass(frozen=True, slots=True)
class _Sort:
    """What an exercise has to know of a kind."""

    home: Home
    delay: tuple[float, float]
    mildest: float = 0.5
    """The least severity: at 0.5 every one of them can be seen."""


_TOP_BIT = 0.9
"""A flip of a lower bit makes a number vanish, and nothing of it is ever seen."""


_FAULTS = MappingProxyType(
    {
        "F01": _Sort(Home.BATCHES, _SOON),
        "F02": _Sort(Home.BATCHES, _SOON),
        "F03": _Sort(Home.ONCE, _LATE),
        "F04": _Sort(Home.BATCHES, _LATE),
        "F05": _Sort(Home.SETTINGS, _SOON),
        "F07": _Sort(Home.SETTINGS, _SOON),
        "F11": _Sort(Home.SETTINGS, _LATE),
        "F12": _Sort(Home.BATCHES, _SOON),
        "F13": _Sort(Home.ONCE, _SOON, _TOP_BIT),
        "F13w": _Sort(Home.ONCE, _SOON, _TOP_BIT),
        "F18": _Sort(Home.ONCE, _SOON),
        "F22": _Sort(Home.SETTINGS, _SOON),
        "F24": _Sort(Home.SETTINGS, _LATE),
    }
)
"""Faults that one process can have from a step on, and for which it matters what is done."""

_HARMLESS = MappingProxyType(
    {
        "cooldown": _Sort(Home.SETTINGS, _LATE),
        "batch-ramp": _Sort(Home.SETTINGS, _SOON),
        "length-change": _Sort(Home.SETTINGS, _SOON),
        "right-resume": _Sort(Home.ONCE, _SOON),
        "F20": _Sort(Home.SETTINGS, _SOON),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """One blind exercise; nothing in it may be shown before the answer but `asked`."""

    seed: int
    scenario: Scenario
    home: Home
    severity: float
    onset: int
    asked: int
    """The first step that is not there yet when somebody is asked."""

    @classmethod
    def of_seed(cls, seed: int, steps: int = STEPS) -> "Exercise":
        """The exercise that a seed stands for."""
        if seed < 0:
            raise ConfigError(f"seed must not be negative, got {seed}")
        if steps < FEWEST_STEPS:
            raise ConfigError(f"steps must be at least {FEWEST_STEPS}, got {steps}")
        random = np.random.default_rng([seed, *b"practice"])
        sorts = _HARMLESS if random.random() < _HARMLESS_SHARE else _FAULTS
        kind = list(sorts)[int(random.integers(len(sorts)))]
        return cls.of_kind(kind, seed, steps)

    @classmethod
    def of_kind(cls, kind: str, seed: int, steps: int = STEPS) -> "Exercise":
        """The exercise that a seed would be, were it of this kind."""
        sort = (_FAULTS | _HARMLESS)[kind]
        # Seeds of the tuning split: its models are the small ones, so that nobody waits for long.
        scenario = Scenario(kind=kind, seed=5 * (seed // 2) + seed % 2, steps=steps)
        onset, every = scenario.onset, steps // _CHECKPOINTS
        if scenario.needs is Base.RESUME:
            onset -= onset % every  # a run is resumed from a checkpoint, so there has to be one
        random = np.random.default_rng([seed, *kind.encode(), *b"delay"])
        delay = max(1, round(steps * random.uniform(*sort.delay)))
        return cls(
            seed=seed,
            scenario=scenario,
            home=sort.home,
            severity=random.uniform(sort.mildest, 1.0),
            onset=onset,
            asked=onset + delay,
        )

    @property
    def steps(self) -> int:
        """Length of the run."""
        return self.scenario.steps

    @property
    def is_resumed(self) -> bool:
        """Whether the run is stopped at the onset and started again."""
        return self.scenario.needs is Base.RESUME

    @property
    def checkpoints(self) -> list[int]:
        """The steps of all checkpoints that are there when somebody is asked."""
        every = self.config().checkpoint_steps
        return list(range(every, self.asked + 1, every))

    @property
    def last_good(self) -> int:
        """The newest checkpoint that the trouble is not in."""
        return max(step for step in self.checkpoints if step <= self.onset)

    def disturbance(self) -> Disturbance:
        """What is done to the run."""
        kind = kind_named(self.scenario.kind)
        return kind(onset=self.onset, severity=self.severity, seed=self.seed)

    def config(self) -> TrainConfig:
        """The settings of the run."""
        config, every = self.scenario.config(), self.steps // _CHECKPOINTS
        return dataclasses.replace(
            config,
            optimizer=dataclasses.replace(config.optimizer, lr=_LR),
            checkpoint_steps=every,
            eval_steps=every,
            eval_batches=_EVAL_BATCHES,
        )
