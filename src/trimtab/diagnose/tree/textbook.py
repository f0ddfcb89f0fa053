"""The textbook decision tree, walked question by question.

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

A question whose signal was not recorded says so, and takes the way of "no". The questions with a
"b" are ours: the textbook's threshold table has a collapsed scale as a symptom of its own, and
a norm that is not finite is seen here before the loss shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.evidence import precision, slow, spike
from trimtab.diagnose.evidence.reading import Panel, Reading, Verdict
from trimtab.diagnose.tree import textbook_leaves as leaves
from trimtab.diagnose.tree.textbook_leaves import Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One fork of the tree: a panel, and where each answer leads."""

    text: str
    panel: Panel
    yes: str | Leaf
    no: str | Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question as it was answered on a walk."""

    id: str
    question: str
    reading: Reading
    goes_to: str
    """The next question, or "end"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The way through the tree for one incident."""

    answers: tuple[Answer, ...]
    leaf: Leaf


QUESTIONS = {
    "1.1": Question(
        text="Is the loss NaN or infinite at any record?",
        panel=precision.nonfinite_loss,
        yes="1.2",
        no="1.1b",
    ),
    "1.1b": Question(
        text="Is a weight, update or optimizer norm NaN or infinite?",
        panel=precision.nonfinite_norm,
        yes=leaves.CORRUPTED_STATE,
        no="2.1",
    ),
    "1.2": Question(
        text="Was the run in fp16?",
        panel=precision.half_precision,
        yes="3.2",
        no="1.3",
    ),
    "1.3": Question(
        text="Was the gradient norm non-finite before the loss was?",
        panel=precision.gradient_first,
        yes=leaves.GRADIENT_FIRST,
        no=leaves.DESTRUCTIVE_UPDATE,
    ),
    "2.1": Question(
        text="Is there a loss above mean + 3 sigma of the 100 before it?",
        panel=spike.spike,
        yes="2.2",
        no="3.1",
    ),
    "2.2": Question(
        text="Was the loss back within mean + 0.5 sigma in 50 records?",
        panel=spike.recovered,
        yes="2.3a",
        no="2.4",
    ),
    "2.3a": Question(
        text="Is the gradient norm at the spike over 30 times its rolling mean?",
        panel=spike.long_tail,
        yes=leaves.LONG_TAIL,
        no="2.3b",
    ),
    "2.3b": Question(
        text="Did the learning rate jump at the spike?",
        panel=spike.lr_jump,
        yes=leaves.LR_JUMPED,
        no="2.3c",
    ),
    "2.3c": Question(
        text="Is the batch a duplicate of a recent one?",
        panel=spike.repeated_batch,
        yes=leaves.SAME_BATCH,
        no=leaves.SPIKE_UNEXPLAINED,
    ),
    "2.4": Question(
        text="Did the log go on for the 50 records that a recovery may take?",
        panel=spike.had_its_time,
        yes=leaves.PERSISTENT,
        no=leaves.TOO_EARLY,
    ),
    "3.1": Question(
        text="Is there a record whose gradient norm is NaN or infinite?",
        panel=precision.nonfinite_gradient,
        yes="3.2",
        no="3.1b",
    ),
    "3.1b": Question(
        text="Did the loss scale fall under 1?",
        panel=precision.scale_collapsed,
        yes=leaves.COLLAPSED_SCALE,
        no="4.1",
    ),
    "3.2": Question(
        text="Did the loss scale fall under 1?",
        panel=precision.scale_collapsed,
        yes=leaves.COLLAPSED_SCALE,
        no="3.2b",
    ),
    "3.2b": Question(
        text="Is the loss scale constant?",
        panel=precision.scale_constant,
        yes=leaves.FROZEN_SCALE,
        no=leaves.OVERFLOW,
    ),
    "4.1": Question(
        text="Has the loss risen at each of the last 200 records?",
        panel=slow.monotone_rise,
        yes="4.2",
        no=leaves.HEALTHY,
    ),
    "4.2": Question(
        text="Has the learning rate increased over the same records?",
        panel=slow.lr_rising,
        yes=leaves.SCHEDULE,
        no="4.3",
    ),
    "4.3": Question(
        text="Has a weight norm changed by more than 2x in 200 steps?",
        panel=slow.norm_changed,
        yes=leaves.WEIGHT_DECAY,
        no="4.4",
    ),
    "4.4": Question(
        text="Is the rolling mean of the gradient norm trending up?",
        panel=slow.gradient_trend,
        yes=leaves.TOO_HOT,
        no=leaves.PLATEAU,
    ),
}


def walk(case: IncidentContext, questions: Mapping[str, Question] = QUESTIONS) -> Walk:
    """Ask question after question until the tree ends."""
    answers: list[Answer] = []
    here: str | Leaf = "1.1"
    while isinstance(here, str):
        question = questions[here]
        reading = question.panel(case)
        following = question.yes if reading.verdict is Verdict.YES else question.no
        answers.append(
            Answer(
                id=here,
                question=question.text,
                reading=reading,
                goes_to=following if isinstance(following, str) else "end",
            )
        )
        here = following
    return Walk(answers=tuple(answers), leaf=here)
