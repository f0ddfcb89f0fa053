"""The tree for trimtab's own findings: the textbook's questions where they hold, ours where not.

1.x non-finite        as in the textbook
1.4 does a finding name its cause? --> 5.x which: rate, state, data, updates
2.1 beyond the run's own noise? --> 2.2 back in 100 steps? --> 2.3 norm, LR, batch
3.x mixed precision   as in the textbook
4.1 did the level rise? --> LR, weight norm, gradient; else the data
7.x was it at a resume?
6.x what is left: norms, activations, precision, speed, reference
"""

import dataclasses

from trimtab.core.findings import Symptom
from trimtab.diagnose.evidence import named, slow, spike
from trimtab.diagnose.tree import textbook_leaves as leaves
from trimtab.diagnose.tree import trimtab_leaves as own_leaves
from trimtab.diagnose.tree.textbook import QUESTIONS, Question
from trimtab.diagnose.tree.textbook_leaves import Leaf

_Named = tuple[tuple[str, tuple[Symptom, ...], str | Leaf], ...]

_DECISIVE: _Named = (
    ("Did the learning rate jump?", (Symptom.LR_JUMP,), leaves.LR_JUMPED),
    ("Does the learning rate rise in its decay?", (Symptom.LR_RISING,), own_leaves.OFF_PLAN),
    ("Are parameters not updating?", (Symptom.FROZEN,), own_leaves.FROZEN),
    ("Did the loss not continue after a resume?", (Symptom.RESUME_GAP,), own_leaves.WRONG_RESUME),
    (
        "Are the batches no longer those of the reference?",
        (Symptom.OTHER_BATCH,),
        own_leaves.OTHER_BATCHES,
    ),
    (
        "Did step or data position go back?",
        (Symptom.WENT_BACK, Symptom.DATA_BACK),
        own_leaves.WENT_BACK,
    ),
    ("Was a batch served again?", (Symptom.REPEATED_BATCH,), "7.1"),
    ("Did the optimizer's state change at once?", (Symptom.STATE_LOST,), "7.3"),
    ("Are the tokens unlike those before?", (Symptom.ODD_TOKENS,), own_leaves.ODD_TOKENS),
    ("Are the attention logits too large?", (Symptom.LARGE_LOGITS,), own_leaves.GROWN_LOGITS),
    ("Do updates have another size?", (Symptom.UPDATE_SHIFT,), own_leaves.RESIZED_UPDATE),
    (
        "Did weights or activations change at once?",
        (Symptom.NORM_DRIFT, Symptom.ACTIVATION_JUMP),
        "7.2",
    ),
)
"""Findings that name a cause: asked for before the loss is."""

_OTHERS: _Named = (
    ("Does a weight norm drift?", (Symptom.NORM_DRIFT,), own_leaves.DRIFTING),
    ("Did activations jump?", (Symptom.ACTIVATION_JUMP,), own_leaves.JUMPED_ACTIVATIONS),
    ("Are there overflows all the time?", (Symptom.OVERFLOWS,), own_leaves.OVERFLOWING),
    ("Does the loss scale stand still?", (Symptom.SCALE_FROZEN,), own_leaves.FIXED_SCALE),
    ("Is the loss no longer recorded?", (Symptom.MISSING_LOSS,), own_leaves.NOT_RECORDED),
    ("Did a step stall?", (Symptom.STALL,), own_leaves.STALLED),
    ("Did the steps become slower?", (Symptom.SLOW,), own_leaves.SLOWED),
    ("Is nothing being learnt?", (Symptom.NO_LEARNING,), own_leaves.NO_LEARNING),
    ("Did the run leave its reference?", (Symptom.REFERENCE_GAP,), own_leaves.LEFT_REFERENCE),
)
"""What may go with a loss that has reasons of its own: asked for last."""


_RESUMED = "Did the run resume, or go back, just before?"


def _chain(chapter: int, asked: _Named, end: str | Leaf) -> dict[str, Question]:
    """Questions after named findings, one after the other."""
    questions = {}
    for place, (text, symptoms, then) in enumerate(asked, start=1):
        following = f"{chapter}.{place + 1}" if place < len(asked) else end
        questions[f"{chapter}.{place}"] = Question(
            text=text, panel=named.panel_of(*symptoms), yes=then, no=following
        )
    return questions


OWN_QUESTIONS = {
    **QUESTIONS,
    "1.1b": dataclasses.replace(QUESTIONS["1.1b"], no="1.4"),
    "1.4": Question(
        text="Does a finding name its cause by itself?",
        panel=named.panel_of(*(symptom for _, symptoms, _ in _DECISIVE for symptom in symptoms)),
        yes="5.1",
        no="2.1",
    ),
    "2.1": Question(
        text="Did the loss or a norm rise beyond this run's own noise?",
        panel=spike.rose,
        yes="2.2",
        no="3.1",
    ),
    "2.2": Question(
        text="Was the loss back in 100 steps (2 records of a thinned log)?",
        panel=spike.recovered,
        yes="2.3a",
        no="2.4",
    ),
    "2.4": Question(
        text="Did the log go on for the time that a recovery may take?",
        panel=spike.had_its_time,
        yes=own_leaves.PERSISTENT,
        no=own_leaves.TOO_EARLY,
    ),
    "4.1": Question(
        text="Did the level of the loss rise?",
        panel=named.panel_of(Symptom.LEVEL_SHIFT),
        yes="4.2",
        no="6.1",
    ),
    "4.4": Question(
        text="Is the rolling mean of the gradient norm trending up?",
        panel=slow.gradient_trend,
        yes=leaves.TOO_HOT,
        no=own_leaves.MOVED_LEVEL,
    ),
    "7.1": Question(
        text=_RESUMED, panel=spike.resumed, yes=own_leaves.WRONG_RESUME, no=own_leaves.REPEATED
    ),
    "7.2": Question(text=_RESUMED, panel=spike.resumed, yes=own_leaves.WRONG_RESUME, no="2.1"),
    "7.3": Question(
        text=_RESUMED,
        panel=spike.resumed,
        yes=own_leaves.STATE_LOST,
        no=own_leaves.CHANGED_MOMENTS,
    ),
    **_chain(5, _DECISIVE, "2.1"),
    **_chain(6, _OTHERS, own_leaves.UNEXPLAINED),
}
