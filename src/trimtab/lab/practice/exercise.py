"""Exercise: a run with or without a fault, and the step at which the learner decides.

A seed determines all of it. The origin of the fault decides what a restart does:

in some batches     returns with the same batches; skipping them avoids it
once, in a machine  does not return, but checkpoints saved since then contain it
in the settings     returns at the same step, whatever is restored
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from trimtab.core.actions import ActionKind
from trimtab.core.errors import ConfigError
from trimtab.lab.scenarios.catalogue import kind_named
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.intervention import Base, Intervention
from trimtab.lab.trainer.train_config import TrainConfig

STEPS = 240
"""A run of a few seconds, with about 100 healthy steps before the onset."""

MIN_STEPS = 48
_CHECKPOINTS = 8
"""Per run: with 240 steps one every 30, so that the newest may be later than the onset, and rolling
back has a cost."""

_LR = 4e-3
"""The best of 4e-3, 8e-3, 1.6e-2 and 3.2e-2 over 240 steps, clipped and not; 1e-3 is worse too (a
held-out loss of 4.88 against 4.56). At the best rate, raising it does harm."""

_EVAL_BATCHES = 8

_HARMLESS_SHARE = 0.25
"""Share of exercises without a fault, so that always acting is sometimes wrong."""


class ExerciseOrigin(StrEnum):
    """Where a fault comes from."""

    BATCHES = "in some batches"
    ONCE = "once, in a machine"
    SETTINGS = "in the code or the settings"


_SOON = (0.02, 0.05)
_LATE = (0.10, 0.15)
"""Delay from onset to decision, as a share of the run: a spike shows at once, a silent fault after
24 to 36 of 240 steps."""


@dataclass(frozen=True, slots=True)
class _KindSpec:
    """How a kind is used in exercises."""

    origin: ExerciseOrigin
    delay: tuple[float, float]
    min_severity: float = 0.5
    """At 0.5 every kind is visible."""


_TOP_BIT = 0.9
"""Minimum severity of a bit flip: flipping a lower bit has no visible effect."""

_FAULTS = MappingProxyType(
    {
        "F01": _KindSpec(ExerciseOrigin.BATCHES, _SOON),
        "F02": _KindSpec(ExerciseOrigin.BATCHES, _SOON),
        "F03": _KindSpec(ExerciseOrigin.ONCE, _LATE),
        "F04": _KindSpec(ExerciseOrigin.BATCHES, _LATE),
        "F05": _KindSpec(ExerciseOrigin.SETTINGS, _SOON),
        "F07": _KindSpec(ExerciseOrigin.SETTINGS, _SOON),
        "F11": _KindSpec(ExerciseOrigin.SETTINGS, _LATE),
        "F12": _KindSpec(ExerciseOrigin.BATCHES, _SOON),
        "F13": _KindSpec(ExerciseOrigin.ONCE, _SOON, _TOP_BIT),
        "F13w": _KindSpec(ExerciseOrigin.ONCE, _SOON, _TOP_BIT),
        "F18": _KindSpec(ExerciseOrigin.ONCE, _SOON),
        "F22": _KindSpec(ExerciseOrigin.SETTINGS, _SOON),
        "F24": _KindSpec(ExerciseOrigin.SETTINGS, _LATE),
    }
)
"""Faults that start at some step of a single-process run and for which the answer matters."""

_HARMLESS = MappingProxyType(
    {
        "cooldown": _KindSpec(ExerciseOrigin.SETTINGS, _LATE),
        "batch-ramp": _KindSpec(ExerciseOrigin.SETTINGS, _SOON),
        "length-change": _KindSpec(ExerciseOrigin.SETTINGS, _SOON),
        "right-resume": _KindSpec(ExerciseOrigin.ONCE, _SOON),
        "F20": _KindSpec(ExerciseOrigin.SETTINGS, _SOON),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """One blind exercise; before the answer, only `decision_step` may be shown."""

    seed: int
    scenario: Scenario
    origin: ExerciseOrigin
    severity: float
    onset: int
    decision_step: int
    """The number of steps done when the learner decides."""

    @classmethod
    def from_seed(cls, seed: int, steps: int = STEPS) -> "Exercise":
        if seed < 0:
            raise ConfigError(f"seed must not be negative, got {seed}")
        if steps < MIN_STEPS:
            raise ConfigError(f"steps must be at least {MIN_STEPS}, got {steps}")
        random = np.random.default_rng([seed, *b"practice"])
        specs = _HARMLESS if random.random() < _HARMLESS_SHARE else _FAULTS
        kind = list(specs)[int(random.integers(len(specs)))]
        return cls.from_kind(kind, seed, steps)

    @classmethod
    def from_kind(cls, kind: str, seed: int, steps: int = STEPS) -> "Exercise":
        """Return the exercise of a seed, with this kind instead of a random one."""
        spec = (_FAULTS | _HARMLESS)[kind]
        # Seeds of the tuning split: its models are smaller and train faster.
        scenario = Scenario(kind=kind, seed=5 * (seed // 2) + seed % 2, steps=steps)
        onset, every = scenario.onset, steps // _CHECKPOINTS
        if scenario.required_base is Base.RESUME:
            onset -= onset % every  # a resume needs a checkpoint at the onset
        random = np.random.default_rng([seed, *kind.encode(), *b"delay"])
        delay = max(1, round(steps * random.uniform(*spec.delay)))
        return cls(
            seed=seed,
            scenario=scenario,
            origin=spec.origin,
            severity=random.uniform(spec.min_severity, 1.0),
            onset=onset,
            decision_step=onset + delay,
        )

    @property
    def steps(self) -> int:
        return self.scenario.steps

    @property
    def is_resumed(self) -> bool:
        return self.scenario.required_base is Base.RESUME

    @property
    def checkpoints(self) -> list[int]:
        """The steps of all checkpoints that exist when the learner decides."""
        every = self.config().checkpoint_steps
        return list(range(every, self.decision_step + 1, every))

    @property
    def last_good(self) -> int:
        return max(step for step in self.checkpoints if step <= self.onset)

    def intervention(self) -> Intervention:
        kind = kind_named(self.scenario.kind)
        return kind(onset=self.onset, severity=self.severity, seed=self.seed)

    def config(self) -> TrainConfig:
        config, every = self.scenario.config(), self.steps // _CHECKPOINTS
        return dataclasses.replace(
            config,
            optimizer=dataclasses.replace(config.optimizer, lr=_LR),
            checkpoint_steps=every,
            eval_steps=every,
            eval_batches=_EVAL_BATCHES,
        )


_ACTIONS = {kind.value.lower(): kind for kind in ActionKind} | {
    "rollback": ActionKind.ROLL_BACK,
    "lower": ActionKind.LOWER_LR,
}
_ANSWER = re.compile(
    r"([a-z]+(?: [a-z]+)?)(?: (?:--to )?([0-9]+(?:\.[0-9]+)?))?"
    r"(?: --skip ([0-9]{1,6}):([0-9]{1,6}))?(?: --lr-factor (0?\.[0-9]{1,6}|1))?"
)
"""An answer; what follows the number is of `trimtab rollback`, with its meaning there."""

DEFAULT_LR_FACTOR = 3.0
"""Divisor of the learning rate if none is given. Source: the textbook's 2 to 3 times."""

_MAX_NUMBER = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticeAnswer:
    """An action with its number."""

    kind: ActionKind
    number: float | None = None
    """Batches to skip, step of the checkpoint, or divisor of the learning rate; None for others."""
    skip: tuple[int, int] = (0, 0)
    """Of a rollback: the first step whose data is left out, and the one after the last."""
    lr_factor: float = 1.0
    """Of a rollback: what the learning rate is multiplied by."""

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number:g}"
        skip = f" --skip {self.skip[0]}:{self.skip[1]}" if any(self.skip) else ""
        factor = f" --lr-factor {self.lr_factor:g}" if self.lr_factor != 1.0 else ""
        return f"{self.kind.value}{number}{skip}{factor}"


def parse_answer(text: str, exercise: Exercise) -> PracticeAnswer:
    """Parse an answer; raises ConfigError if it is not valid."""
    found = _ANSWER.fullmatch(" ".join(text.lower().split()))
    kind = _ACTIONS.get(found[1]) if found else None
    if found is None or kind is None:
        known = ", ".join(known.value for known in ActionKind)
        raise ConfigError(f"unknown answer {text!r}; choose from: {known}")
    number = _default_number(kind, exercise) if found[2] is None else float(found[2])
    match kind:
        case ActionKind.SKIP:
            wanted, fits = f"1 to {_MAX_NUMBER} batches", number in range(1, _MAX_NUMBER + 1)
        case ActionKind.ROLL_BACK:
            steps = ", ".join(map(str, exercise.checkpoints))
            wanted, fits = f"the step of a checkpoint: {steps}", number in exercise.checkpoints
        case ActionKind.LOWER_LR:
            wanted = f"a factor above 1, up to {_MAX_NUMBER}"
            fits = number is not None and 1 < number <= _MAX_NUMBER
        case _:
            wanted, fits = "no number", number is None
    if not fits:
        raise ConfigError(f"{kind.value!r} takes {wanted}; got {number:g}")
    skip, factor = (int(found[3] or 0), int(found[4] or 0)), float(found[5] or 1)
    if kind is not ActionKind.ROLL_BACK and (any(skip) or factor != 1.0):
        raise ConfigError(f"{kind.value!r} takes {wanted}, and no --skip or --lr-factor")
    if (any(skip) and skip[0] >= skip[1]) or factor == 0.0:
        raise ConfigError("--skip takes A:B with A before B, --lr-factor a number above 0")
    return PracticeAnswer(kind=kind, number=number, skip=skip, lr_factor=factor)


def candidates(exercise: Exercise) -> list[PracticeAnswer]:
    """Return the answers that are tried in every exercise, mildest first."""
    newest = PracticeAnswer(kind=ActionKind.ROLL_BACK, number=exercise.checkpoints[-1])
    defaults = [
        PracticeAnswer(kind=kind, number=_default_number(kind, exercise)) for kind in ActionKind
    ]
    good = PracticeAnswer(kind=ActionKind.ROLL_BACK, number=exercise.last_good)
    return list(dict.fromkeys([*defaults[:3], newest, good, *defaults[4:]]))


def _default_number(kind: ActionKind, exercise: Exercise) -> float | None:
    """Return the number of an action if the learner gives none."""
    match kind:
        case ActionKind.SKIP:
            return exercise.decision_step - exercise.last_good
        case ActionKind.ROLL_BACK:
            return exercise.checkpoints[-1]
        case ActionKind.LOWER_LR:
            return DEFAULT_LR_FACTOR
        case _:
            return None


_MIN_GAIN = 0.05
"""Smallest difference in held-out loss that is not noise: runs that differ in a few skipped batches
end within about 0.02 of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerResult:
    """The outcome of an answer."""

    eval_loss: float
    """Held-out loss of the final weights."""
    steps: int
    """Steps computed after the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What can be gained from the last good checkpoint on."""

    loss_before: float
    """Held-out loss of that checkpoint."""
    loss_fixed: float
    """Held-out loss at the end if the cause is fixed there."""
    steps: int
    """Steps from there to the end."""

    @property
    def gain(self) -> float:
        """By how much the healthy rest of the run lowers the loss."""
        return max(self.loss_before - self.loss_fixed, _MIN_GAIN)

    @property
    def price(self) -> float:
        """The cost of a step, in held-out loss."""
        return self.gain / 2 / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMark:
    """The score of an answer."""

    answer: PracticeAnswer
    result: AnswerResult
    score: int
    """100 is the best answer tried; 0 lost half of the possible gain or more."""


def mark_answers(
    results: Mapping[PracticeAnswer, AnswerResult], stakes: Stakes
) -> list[AnswerMark]:
    """Return all answers, the best first; among equal ones, the milder first."""
    costs = {answer: _cost(result, stakes) for answer, result in results.items()}
    best = min(costs.values())
    scores = {
        answer: round(100 * max(0.0, 1 - (cost - best) / (stakes.gain / 2)))
        for answer, cost in costs.items()
    }
    marks = [
        AnswerMark(answer=answer, result=result, score=scores[answer])
        for answer, result in results.items()
    ]
    return sorted(marks, key=lambda one: costs[one.answer])


def _cost(result: AnswerResult, stakes: Stakes) -> float:
    # Non-finite weights are the worst result; NaN could not be compared.
    loss = result.eval_loss if math.isfinite(result.eval_loss) else math.inf
    return loss + stakes.price * result.steps
