"""The textbook decision tree: its questions and its leaves.

    1.1 loss non-finite? --yes--> 1.2 fp16? --yes--> 3.2
         | no                        | no --> 1.3 gradient first? --> destructive update
    1.1b a norm non-finite? --yes--> corrupted state
         | no
    2.1 spike? --yes--> 2.2 back in 50? --yes--> 2.3a norm 30x? 2.3b LR jump? 2.3c same batch?
         | no                  | no --> persistent
    3.1 gradient norm non-finite? --yes--> 3.2 scale collapsed? scale constant?
         | no
    3.1b scale collapsed?
         | no
    4.1 loss risen 200 times? --yes--> 4.2 LR rising? 4.3 weight norm 2x? 4.4 gradient rising?
         | no --> healthy

A question whose signal was not recorded says so and takes the "no" branch. The questions with a "b"
are ours: the textbook's threshold table has a collapsed scale as a separate symptom, and here a
non-finite norm is seen before the loss shows it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass
from trimtab.explain.causes.conclusions import Conclusion
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.checks import IncidentCheck, Observed, gradient_first, nonfinite_loss
from trimtab.explain.textbook import checks

FIRST_QUESTION = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf(Conclusion):
    """The end of a walk; its cause is None where the tree ends without naming a fault."""

    incident_class: IncidentClass | None = None
    """Set where the tree knows the class better than the state machine."""
    is_explained: bool = True
    """False where a supported hypothesis says more than the leaf."""


@dataclass(frozen=True, slots=True)
class TreeQuestion:
    """One fork of the tree: a check, whose docstring is the question, and where answers lead."""

    check: IncidentCheck
    yes: str | Leaf
    no: str | Leaf
    """Also where the signal of the check was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAnswer:
    """One question as it was answered on a walk."""

    id: str
    question: str
    result: Observed
    goes_to: str
    """The next question, or "end"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The path through the tree for one incident."""

    answers: tuple[TreeAnswer, ...]
    leaf: Leaf


def walk(context: IncidentContext) -> Walk:
    """Ask question after question until the tree ends in a leaf."""
    answers: list[TreeAnswer] = []
    here: str | Leaf = FIRST_QUESTION
    while isinstance(here, str):
        question = TEXTBOOK_TREE[here]
        result = question.check(context)
        # What was not recorded counts as no: the tree must end in a leaf for any log.
        following = question.yes if result.is_yes else question.no
        text = question.check.__doc__ or question.check.__name__
        goes_to = following if isinstance(following, str) else "end"
        answers.append(TreeAnswer(id=here, question=text, result=result, goes_to=goes_to))
        here = following
    return Walk(answers=tuple(answers), leaf=here)


_TEXTS: Mapping[str, Mapping[str, Any]] = json.loads(
    resources.files(__package__).joinpath("leaves.json").read_text(encoding="utf-8")
)


def _leaf(name: str) -> Leaf:
    texts = _TEXTS[name]
    return Leaf(
        cause=next((cause for cause in Cause if cause.id == texts.get("cause")), None),
        root_cause=texts["root_cause"],
        remedy=texts["remedy"],
        lesson=texts["lesson"],
        incident_class=IncidentClass(texts["class"]) if "class" in texts else None,
        is_explained=texts.get("is_explained", True),
    )


OVERFLOW = _leaf("OVERFLOW")
COLLAPSED_SCALE = _leaf("COLLAPSED_SCALE")
FROZEN_SCALE = _leaf("FROZEN_SCALE")
DESTRUCTIVE_UPDATE = _leaf("DESTRUCTIVE_UPDATE")
GRADIENT_FIRST = _leaf("GRADIENT_FIRST")
CORRUPTED_STATE = _leaf("CORRUPTED_STATE")
LONG_TAIL = _leaf("LONG_TAIL")
LR_JUMPED = _leaf("LR_JUMPED")
SAME_BATCH = _leaf("SAME_BATCH")
SPIKE_UNEXPLAINED = _leaf("SPIKE_UNEXPLAINED")
PERSISTENT = _leaf("PERSISTENT")
TOO_EARLY = _leaf("TOO_EARLY")
SCHEDULE = _leaf("SCHEDULE")
WEIGHT_DECAY = _leaf("WEIGHT_DECAY")
TOO_HOT = _leaf("TOO_HOT")
PLATEAU = _leaf("PLATEAU")
HEALTHY = _leaf("HEALTHY")

TEXTBOOK_TREE: Mapping[str, TreeQuestion] = {
    "1.1": TreeQuestion(nonfinite_loss, "1.2", "1.1b"),
    "1.1b": TreeQuestion(checks.nonfinite_norm, CORRUPTED_STATE, "2.1"),
    "1.2": TreeQuestion(checks.is_half_precision, "3.2", "1.3"),
    "1.3": TreeQuestion(gradient_first, GRADIENT_FIRST, DESTRUCTIVE_UPDATE),
    "2.1": TreeQuestion(checks.spike, "2.2", "3.1"),
    "2.2": TreeQuestion(checks.recovered, "2.3a", "2.4"),
    "2.3a": TreeQuestion(checks.long_tail, LONG_TAIL, "2.3b"),
    "2.3b": TreeQuestion(checks.lr_jump, LR_JUMPED, "2.3c"),
    "2.3c": TreeQuestion(checks.repeated_batch, SAME_BATCH, SPIKE_UNEXPLAINED),
    "2.4": TreeQuestion(checks.had_its_time, PERSISTENT, TOO_EARLY),
    "3.1": TreeQuestion(checks.nonfinite_gradient, "3.2", "3.1b"),
    "3.1b": TreeQuestion(checks.scale_collapsed, COLLAPSED_SCALE, "4.1"),
    "3.2": TreeQuestion(checks.scale_collapsed, COLLAPSED_SCALE, "3.2b"),
    "3.2b": TreeQuestion(checks.scale_constant, FROZEN_SCALE, OVERFLOW),
    "4.1": TreeQuestion(checks.monotone_rise, "4.2", HEALTHY),
    "4.2": TreeQuestion(checks.lr_rising, SCHEDULE, "4.3"),
    "4.3": TreeQuestion(checks.norm_changed, WEIGHT_DECAY, "4.4"),
    "4.4": TreeQuestion(checks.gradient_trend, TOO_HOT, PLATEAU),
}
