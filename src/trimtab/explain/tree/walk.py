"""Walking a decision tree: question after question, until a leaf names the cause."""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.check import Check, CheckResult, Outcome

FIRST_QUESTION = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The end of a walk."""

    cause: Cause | None
    """None where the tree ends without naming a fault."""
    root_cause: str
    """One sentence, or why the cause is not known."""
    remedy: str
    """The smallest change that fixes it."""
    lesson: str
    incident_class: IncidentClass | None = None
    """Set where the tree knows the class better than the state machine."""
    is_explained: bool = True
    """False where a supported hypothesis says more than the leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One fork of the tree: a check, and where each answer leads."""

    text: str
    check: Check
    yes: str | Leaf
    no: str | Leaf
    """Also where the signal of the check was not recorded."""


Tree = Mapping[str, Question]
"""Questions by their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question as it was answered on a walk."""

    id: str
    question: str
    result: CheckResult
    goes_to: str
    """The next question, or "end"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The path through the tree for one incident."""

    answers: tuple[Answer, ...]
    leaf: Leaf


def walk(context: IncidentContext, tree: Tree) -> Walk:
    """Ask question after question until the tree ends."""
    answers: list[Answer] = []
    here: str | Leaf = FIRST_QUESTION
    while isinstance(here, str):
        question = tree[here]
        result = question.check(context)
        following = question.yes if result.outcome is Outcome.YES else question.no
        answers.append(
            Answer(
                id=here,
                question=question.text,
                result=result,
                goes_to=following if isinstance(following, str) else "end",
            )
        )
        here = following
    return Walk(answers=tuple(answers), leaf=here)
