"""Answers: what a learner can type: `wait`, `skip 20`, `roll back 100`, `lower 3`."""

import re
from dataclasses import dataclass

from trimtab.core.actions import ActionKind
from trimtab.core.errors import ConfigError
from trimtab.lab.practice.exercise import Exercise

_ACTIONS = {kind.value.lower(): kind for kind in ActionKind} | {
    "rollback": ActionKind.ROLL_BACK,
    "lower": ActionKind.LOWER_LR,
}
_ANSWER = re.compile(r"([a-z]+(?: [a-z]+)?)(?: ([0-9]+(?:\.[0-9]+)?))?")

DEFAULT_LR_FACTOR = 3.0
"""Divisor of the learning rate if none is given. Source: the textbook's 2 to 3 times."""

_MAX_NUMBER = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An action with its number."""

    kind: ActionKind
    number: float | None = None
    """Batches to skip, step of the checkpoint, or divisor of the learning rate; None for others."""

    def __str__(self) -> str:
        return self.kind.value if self.number is None else f"{self.kind.value} {self.number:g}"


def parse_answer(text: str, exercise: Exercise) -> Answer:
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
    return Answer(kind=kind, number=number)


def candidates(exercise: Exercise) -> list[Answer]:
    """The answers that are tried in every exercise, mildest first."""
    newest = Answer(kind=ActionKind.ROLL_BACK, number=exercise.checkpoints[-1])
    defaults = [Answer(kind=kind, number=_default_number(kind, exercise)) for kind in ActionKind]
    good = Answer(kind=ActionKind.ROLL_BACK, number=exercise.last_good)
    return list(dict.fromkeys([*defaults[:3], newest, good, *defaults[4:]]))


def _default_number(kind: ActionKind, exercise: Exercise) -> float | None:
    """The number of an action if the learner gives none."""
    match kind:
        case ActionKind.SKIP:
            return exercise.decision_step - exercise.last_good
        case ActionKind.ROLL_BACK:
            return exercise.checkpoints[-1]
        case ActionKind.LOWER_LR:
            return DEFAULT_LR_FACTOR
        case _:
            return None
