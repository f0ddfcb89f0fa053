"""Scenario: a run that can be had again, with what is done to it and what was true.

A seed decides the setting (regime, rate, batch, width, length); the seed and the kind decide onset
and severity. Runs with the same seed and base share a clean twin.

tune       seeds 0, 1, 5, 6, ...     width 48 or 64, 6 or 8 windows of 32 tokens, rates 1e-3 to 4e-3
held-out   seeds 2, 3, 4, 7, 8, ...  also width 80, 4 windows, 24 or 40 tokens, rates 6e-4 and 6e-3
"""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from trimtab.core.config import Mode
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import ModelConfig
from trimtab.lab.scenarios.catalogue import CLEAN, kind_named
from trimtab.lab.trainer.disturbance import Base, Disturbance
from trimtab.lab.trainer.train_config import Dtype, Engine, TrainConfig

_Value = TypeVar("_Value")

VOCAB_SIZE = 512
CORPUS_BYTES = 2**21
"""2 MB of text: more than any run of the suite gets through, tokenized in seconds."""

STEPS = 600
_EARLIEST, _LATEST = 0.42, 0.62
"""Where an onset lies, by the length of the run: behind a baseline, with time to see what becomes
of it."""


_STREAM = 20
"""Of the streams of random numbers one in which the first five seeds have few values in common."""


class Regime(StrEnum):
    """What a burst leaves behind depends on these two more than on anything else."""

    CLIPPED = "clip 1.0, beta2 0.95"
    UNCLIPPED = "no clip, beta2 0.999"


class Grade(StrEnum):
    """How hard a suite hits; the severity is drawn inside of it."""

    MILD = "mild"
    SEVERE = "severe"


_SEVERITIES = {Grade.MILD: (0.2, 0.45), Grade.SEVERE: (0.88, 1.0)}


class SuiteSplit(StrEnum):
    """What a run may be used for."""

    TUNE = "tune"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the runs of a seed are trained."""

    seed: int
    split: SuiteSplit
    regime: Regime
    lr: float
    batch_size: int
    width: int
    length: int

    @classmethod
    def of_seed(cls, seed: int) -> "Setting":
        """The setting that a seed stands for."""
        random = np.random.default_rng([seed, _STREAM])
        held_out = seed % 5 >= 2

        def choose(values: tuple[_Value, ...]) -> _Value:
            return values[int(random.integers(len(values)))]

        return cls(
            seed=seed,
            split=SuiteSplit.HELD_OUT if held_out else SuiteSplit.TUNE,
            regime=(Regime.CLIPPED, Regime.UNCLIPPED)[seed % 2],
            lr=choose((6e-4, 1.5e-3, 3e-3, 6e-3) if held_out else (1e-3, 2e-3, 4e-3)),
            batch_size=choose((4, 6, 8) if held_out else (6, 8)),
            width=choose((48, 64, 80) if held_out else (48, 64)),
            length=choose((24, 32, 40) if held_out else (32,)),
        )

    def config(self, base: Base, steps: int) -> TrainConfig:
        """The settings of a run that nothing is done to."""
        clipped = self.regime is Regime.CLIPPED
        return TrainConfig(
            model=ModelConfig(vocab_size=VOCAB_SIZE, width=self.width, layers=2, heads=4),
            steps=steps,
            optimizer=OptimizerConfig(lr=self.lr, beta2=0.95 if clipped else 0.999),
            dtype=Dtype.FP16 if base is Base.FP16 else Dtype.FP32,
            engine=Engine.DDP if base is Base.RANKS else Engine.ALONE,
            batch_size=self.batch_size,
            length=self.length,
            clip=1.0 if clipped else None,
            seed=self.seed,
            corpus_bytes=CORPUS_BYTES,
            checkpoint_steps=steps,
            eval_steps=100,
            eval_batches=4,
            measure=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run of the lab: a kind, how hard, which seed."""

    kind: str
    """A name of the catalogue, or `clean`."""

    seed: int
    grade: Grade = Grade.SEVERE
    base: Base = Base.PLAIN
    """Only a clean run has to be told; a disturbance brings its own."""

    steps: int = STEPS
    severity: float | None = None
    """None draws one that fits the grade."""

    mode: Mode = Mode.OBSERVE
    """What trimtab does about it; the suite only observes."""

    @property
    def name(self) -> str:
        """What its folder is called."""
        what = f"{CLEAN}-{self.base}" if self.kind == CLEAN else f"{self.kind}-{self.grade}"
        acting = "" if self.mode is Mode.OBSERVE else f"-{self.mode}"
        return f"{what}-seed{self.seed}{acting}"

    @property
    def setting(self) -> Setting:
        """How the run is trained."""
        return Setting.of_seed(self.seed)

    @property
    def stop(self) -> int | None:
        """Where the run is stopped and resumed, if it is."""
        return self.onset if self.needs is Base.RESUME else None

    @property
    def needs(self) -> Base:
        """What the run has to be."""
        return self.base if self.kind == CLEAN else kind_named(self.kind).base

    @property
    def onset(self) -> int:
        """The first step that may differ from the twin."""
        # A run that is resumed shares its twin's resume, so there the kind has no say.
        kind = "" if self.needs is Base.RESUME else self.kind
        random = np.random.default_rng([self.seed, *kind.encode()])
        return round(self.steps * random.uniform(_EARLIEST, _LATEST))

    def disturbance(self) -> Disturbance | None:
        """What is done to the run; None if nothing is."""
        if self.kind == CLEAN:
            return None
        severity = self.severity
        if severity is None:
            random = np.random.default_rng([self.seed, *f"{self.kind} {self.grade}".encode()])
            severity = float(random.uniform(*_SEVERITIES[self.grade]))
        return kind_named(self.kind)(onset=self.onset, severity=severity, seed=self.seed)

    def config(self) -> TrainConfig:
        """The settings of the run."""
        config = self.setting.config(self.needs, self.steps)
        disturbance = self.disturbance()
        if self.stop is not None:
            config = dataclasses.replace(config, checkpoint_steps=self.stop)
        return config if disturbance is None else disturbance.settings(config)

    def twin(self) -> "Scenario":
        """The same run with nothing done to it."""
        return Scenario(kind=CLEAN, seed=self.seed, base=self.needs, steps=self.steps)

    def described(self) -> dict[str, Any]:
        """The part of the truth that is known before the run."""
        setting = dataclasses.asdict(self.setting)
        told: dict[str, Any] = {
            "scenario": self.name,
            "kind": self.kind,
            "grade": None if self.kind == CLEAN else self.grade,
            "base": self.needs,
            "mode": self.mode,
            "steps": self.steps,
            "setting": setting,
            "twin": None if self.kind == CLEAN else self.twin().name,
            "is_fault": False,
            "cause": None,
            "onset": None,
            "end": None,
        }
        disturbance = self.disturbance()
        if disturbance is None:
            return told
        return told | {
            "is_fault": disturbance.is_fault,
            "cause": disturbance.cause.id if disturbance.cause else None,
            "title": disturbance.title,
            "onset": 0 if disturbance.from_start else disturbance.onset,
            "end": disturbance.end,
            "severity": disturbance.severity,
            "strength": disturbance.strength,
            "strength_is": disturbance.strength_name,
            "heals": disturbance.heals,
            "planned": disturbance.planned,
        }
