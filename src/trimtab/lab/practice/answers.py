"""Answers: what a learner may do, in words: `wait`, `skip 20`, `roll back 100`, `lower 3`."""

import re
from dataclasses import dataclass

from trimtab.core.actions import ActionKind
from trimtab.core.errors import ConfigError
from trimtab.lab.practice.exercise import Exercise

_WORDS = {kind.value.lower(): kind for kind in ActionKind} | {
    "rollback": ActionKind.ROLL_BACK,
    "lower": ActionKind.LOWER_LR,
}
_ANSWER = re.compile(r"([a-z]+(?: [a-z]+)?)(?: ([0-9]+(?:\.[0-9]+)?))?")

USUAL_FACTOR = 3.0
"""By how much a rate is lowered if nobody says. Source: the textbook's 2 to 3 times."""

_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One action with its number."""

    kind: ActionKind
    number: float | None = None
    """Batches to skip, checkpoint to go back to, factor of the rate; None where there is none."""

    def __str__(self) -> str:
        return self.kind.value if self.number is None else f"{self.kind.value} {self.number:g}"


def parse_answer(text: str, exercise: Exercise) -> Answer:
    """The answer that a text means; raises ConfigError if it is none."""
    found = _ANSWER.fullmatch(" ".join(text.lower().split()))
    kind = _WORDS.get(found[1]) if found else None
    if found is None or kind is None:
        known = ", ".join(known.value for known in ActionKind)
        raise ConfigError(f"{text!r} is no answer; say one of: {known}")
    number = _usual(kind, exercise) if found[2] is None else float(found[2])
    match kind:
        case ActionKind.SKIP:
            wanted, fits = f"1 to {_MOST} batches", number in range(1, _MOST + 1)
        case ActionKind.ROLL_BACK:
            steps = ", ".join(map(str, exercise.checkpoints))
            wanted, fits = f"the step of a checkpoint: {steps}", number in exercise.checkpoints
        case ActionKind.LOWER_LR:
            wanted = f"a factor of more than 1, up to {_MOST}"
            fits = number is not None and 1 < number <= _MOST
        case _:
            wanted, fits = "no number", number is None
    if not fits:
        raise ConfigError(f"{kind.value!r} takes {wanted}; got {number:g}")
    return Answer(kind=kind, number=number)


def candidates(exercise: Exercise) -> list[Answer]:
    """The answers that are tried in every exercise, mildest first."""
    newest = Answer(kind=ActionKind.ROLL_BACK, number=exercise.checkpoints[-1])
    usual = [Answer(kind=kind, number=_usual(kind, exercise)) for kind in ActionKind]
    good = Answer(kind=ActionKind.ROLL_BACK, number=exercise.last_good)
    return list(dict.fromkeys([*usual[:3], newest, good, *usual[4:]]))


def _usual(kind: ActionKind, exercise: Exercise) -> float | None:
    """The number of an action if nobody says one."""
    match kind:
        case ActionKind.SKIP:
            return exercise.asked - exercise.last_good
        case ActionKind.ROLL_BACK:
            return exercise.checkpoints[-1]
        case ActionKind.LOWER_LR:
            return USUAL_FACTOR
        case _:
            return None
