"""Scenario: a reproducible run, with its intervention and its truth.

A seed determines the setting (regime, learning rate, batch size, width, length); the seed and the
kind determine onset and severity. Runs with the same seed and base share a clean twin.

tune       seeds 0, 1, 5, 6, ...     width 48 or 64, 6 or 8 windows of 32 tokens, rates 1e-3 to 4e-3
held-out   seeds 2, 3, 4, 7, 8, ...  also width 80, 4 windows, 24 or 40 tokens, rates 6e-4 and 6e-3
"""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from trimtab.core.config import Mode
from trimtab.core.errors import ConfigError
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import SIZES, ModelConfig
from trimtab.lab.scenarios.catalogue import CLEAN, kind_named
from trimtab.lab.trainer.intervention import Base, Intervention
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

_Value = TypeVar("_Value")

VOCAB_SIZE = 512
CORPUS_BYTES = 2**21
"""2 MB of text: more than any run of the suite reads, and tokenized in seconds."""
LIBRARY_BYTES = 2**25
"""The whole library, for vocabularies that 2 MB would not fill."""

STEPS = 600
_EARLIEST, _LATEST = 0.42, 0.62
"""Range of the onset, as a share of the run: after a baseline, with time to see the outcome."""

_STREAM = 20
"""A random stream in which the settings of the first five seeds have few values in common."""


class Regime(StrEnum):
    """Clipping and beta2, the two settings that decide most what a burst does to a run."""

    CLIPPED = "clip 1.0, beta2 0.95"
    UNCLIPPED = "no clip, beta2 0.999"


class Grade(StrEnum):
    """The range from which the severity is drawn."""

    MILD = "mild"
    SEVERE = "severe"


_SMALLEST = 128
"""Width up to which models learn faster with 3e-3 than with 1e-3 (`TrainConfig.optimizer`)."""

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
    def from_seed(cls, seed: int) -> "Setting":
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

    @classmethod
    def of_size(cls, size: str, seed: int) -> "Setting":
        """Return the plan of the guides, for one of the lab's named models."""
        return cls(
            seed=seed,
            split=SuiteSplit.TUNE,
            regime=Regime.CLIPPED,
            lr=1e-3 if SIZES[size].width > _SMALLEST else 3e-3,
            batch_size=8,
            width=SIZES[size].width,
            length=64,
        )

    def config(self, base: Base, steps: int) -> TrainConfig:
        """Return the settings of a run without an intervention."""
        clipped = self.regime is Regime.CLIPPED
        return TrainConfig(
            model=ModelConfig(vocab_size=VOCAB_SIZE, width=self.width, layers=2, heads=4),
            steps=steps,
            optimizer=OptimizerConfig(lr=self.lr, beta2=0.95 if clipped else 0.999),
            dtype=Dtype.FP16 if base is Base.FP16 else Dtype.FP32,
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
    """One run of the lab: a kind, a seed and a grade."""

    kind: str
    """A name from the catalogue, or `clean`."""
    seed: int
    grade: Grade = Grade.SEVERE
    base: Base = Base.PLAIN
    """Only for a clean run; an intervention determines it otherwise."""
    steps: int = STEPS
    severity: float | None = None
    """None draws one from the range of the grade."""
    mode: Mode = Mode.OBSERVE
    """The mode of the guard; the suite only observes."""
    size: str = ""
    """One of the lab's named models in bf16, in place of the small one that the seed draws."""
    at: int | None = None
    """The onset; None draws one from the middle of the run."""
    checkpoint_seconds: float | None = None
    """Time from one checkpoint of the guard to the next; None saves none."""

    def __post_init__(self) -> None:
        if self.size not in ("", *SIZES):
            raise ConfigError(f"unknown size {self.size!r}; one of: {', '.join(SIZES)}")
        if self.at is not None and not 0 < self.at < self.steps:
            raise ConfigError(f"the onset must be in 1 to {self.steps - 1}, got {self.at}")

    @property
    def vocab_size(self) -> int:
        return SIZES[self.size].vocab_size if self.size else VOCAB_SIZE

    @property
    def name(self) -> str:
        kind = f"{CLEAN}-{self.base}" if self.kind == CLEAN else f"{self.kind}-{self.grade}"
        mode = "" if self.mode is Mode.OBSERVE else f"-{self.mode}"
        size = f"-{self.size}" if self.size else ""
        at = "" if self.at is None else f"-at{self.at}"
        return f"{kind}-seed{self.seed}{mode}{size}{at}"

    @property
    def setting(self) -> Setting:
        if self.size:
            return Setting.of_size(self.size, self.seed)
        return Setting.from_seed(self.seed)

    @property
    def stop(self) -> int | None:
        """The step at which the run is stopped and resumed; None if it is not."""
        return self.onset if self.required_base is Base.RESUME else None

    @property
    def required_base(self) -> Base:
        return self.base if self.kind == CLEAN else kind_named(self.kind).base

    @property
    def onset(self) -> int:
        """The first step that may differ from the twin."""
        if self.at is not None:
            return self.at
        # A resumed run shares the step of its resume with its twin, so the kind does not matter.
        kind = "" if self.required_base is Base.RESUME else self.kind
        random = np.random.default_rng([self.seed, *kind.encode()])
        return round(self.steps * random.uniform(_EARLIEST, _LATEST))

    def intervention(self) -> Intervention | None:
        """Return the intervention of the run; None for a clean run."""
        if self.kind == CLEAN:
            return None
        severity = self.severity
        if severity is None:
            random = np.random.default_rng([self.seed, *f"{self.kind} {self.grade}".encode()])
            severity = float(random.uniform(*_SEVERITIES[self.grade]))
        return kind_named(self.kind)(onset=self.onset, severity=severity, seed=self.seed)

    def config(self) -> TrainConfig:
        config = self.setting.config(self.required_base, self.steps)
        if self.size:
            is_fp16 = self.required_base is Base.FP16
            config = dataclasses.replace(
                config,
                model=SIZES[self.size],
                dtype=config.dtype if is_fp16 else Dtype.BF16,
                corpus_bytes=CORPUS_BYTES if self.vocab_size == VOCAB_SIZE else LIBRARY_BYTES,
            )
        intervention = self.intervention()
        if self.stop is not None:
            config = dataclasses.replace(config, checkpoint_steps=self.stop)
        return config if intervention is None else intervention.settings(config)

    def twin(self) -> "Scenario":
        is_resumed = self.required_base is Base.RESUME
        return Scenario(
            kind=CLEAN,
            seed=self.seed,
            base=self.required_base,
            steps=self.steps,
            size=self.size,
            at=self.at if is_resumed else None,
        )

    def description(self) -> dict[str, Any]:
        """Return the part of the truth that is known before the run."""
        setting = dataclasses.asdict(self.setting)
        known: dict[str, Any] = {
            "scenario": self.name,
            "kind": self.kind,
            "grade": None if self.kind == CLEAN else self.grade,
            "base": self.required_base,
            "mode": self.mode,
            "steps": self.steps,
            "setting": setting,
            "twin": None if self.kind == CLEAN else self.twin().name,
            "is_fault": False,
            "cause": None,
            "onset": None,
            "end": None,
        }
        if self.size:
            known["size"] = self.size
        intervention = self.intervention()
        if intervention is None:
            return known
        return known | {
            "is_fault": intervention.is_fault,
            "cause": intervention.cause.id if intervention.cause else None,
            "title": intervention.title,
            "onset": 0 if intervention.from_start else intervention.onset,
            "end": intervention.end,
            "severity": intervention.severity,
            "strength": intervention.strength,
            "strength_is": intervention.strength_name,
            "heals": intervention.heals,
            "planned": intervention.planned,
        }
