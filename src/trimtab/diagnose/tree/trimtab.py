"""Trimtab's decision tree: the textbook's questions where they hold, and ours where they do not.

1.x non-finite        as in the textbook
1.4 does a finding name its cause? --> 5.x which: rate, state, data, updates
2.1 beyond the noise of the run? --> 2.2 back in 100 steps? --> 2.3 norm, LR, batch
3.x mixed precision   as in the textbook
4.1 did the level rise? --> LR, weight norm, gradient; else the data
7.x was it at a resume?
6.x the rest: norms, activations, precision, speed, reference
"""

from trimtab.core.findings import Symptom
from trimtab.diagnose.evidence import precision, slow, spike
from trimtab.diagnose.evidence.named import has_finding
from trimtab.diagnose.tree import textbook
from trimtab.diagnose.tree import trimtab_leaves as leaves
from trimtab.diagnose.tree.textbook import TEXTBOOK_TREE
from trimtab.diagnose.tree.walk import Leaf, Question, Tree

_AS_IN_TEXTBOOK = (
    *("1.1", "1.2", "1.3"),
    *("2.3a", "2.3b", "2.3c"),
    *("3.1", "3.1b", "3.2", "3.2b"),
    *("4.2", "4.3"),
)

_Named = tuple[tuple[str, tuple[Symptom, ...], str | Leaf], ...]
"""Question, the symptoms that it asks for, and where "yes" leads."""

_DECISIVE: _Named = (
    ("Did the learning rate jump?", (Symptom.LR_JUMP,), textbook.LR_JUMPED),
    ("Does the learning rate rise in its decay?", (Symptom.LR_RISING,), leaves.OFF_PLAN),
    ("Are parameters not updating?", (Symptom.FROZEN,), leaves.FROZEN),
    ("Did the loss not continue after a resume?", (Symptom.RESUME_GAP,), leaves.WRONG_RESUME),
    (
        "Do the batches differ from those of the reference?",
        (Symptom.OTHER_BATCH,),
        leaves.OTHER_BATCHES,
    ),
    (
        "Did step or data position go back?",
        (Symptom.WENT_BACK, Symptom.DATA_BACK),
        leaves.WENT_BACK,
    ),
    ("Was a batch repeated?", (Symptom.REPEATED_BATCH,), "7.1"),
    ("Did the optimizer's state change at once?", (Symptom.STATE_LOST,), "7.3"),
    ("Are the tokens unlike those before?", (Symptom.ODD_TOKENS,), leaves.ODD_TOKENS),
    ("Are the attention logits too large?", (Symptom.LARGE_LOGITS,), leaves.GROWN_LOGITS),
    ("Did the size of the updates change?", (Symptom.UPDATE_SHIFT,), leaves.RESIZED_UPDATE),
    (
        "Did weights or activations change at once?",
        (Symptom.NORM_DRIFT, Symptom.ACTIVATION_JUMP),
        "7.2",
    ),
)
"""Findings that name a cause: asked for before the loss."""

_OTHERS: _Named = (
    ("Does a weight norm drift?", (Symptom.NORM_DRIFT,), leaves.DRIFTING),
    ("Did activations jump?", (Symptom.ACTIVATION_JUMP,), leaves.JUMPED_ACTIVATIONS),
    ("Are overflows frequent?", (Symptom.OVERFLOWS,), leaves.OVERFLOWING),
    ("Does the loss scale never change?", (Symptom.SCALE_FROZEN,), leaves.FIXED_SCALE),
    ("Is the loss no longer recorded?", (Symptom.MISSING_LOSS,), leaves.NOT_RECORDED),
    ("Did a step stall?", (Symptom.STALL,), leaves.STALLED),
    ("Did the steps become slower?", (Symptom.SLOW,), leaves.SLOWED),
    ("Is nothing being learned?", (Symptom.NO_LEARNING,), leaves.NO_LEARNING),
    ("Did the run leave its reference?", (Symptom.REFERENCE_GAP,), leaves.LEFT_REFERENCE),
)
"""Findings that may accompany a loss that rose for other reasons: asked for last."""

_RESUMED = "Did the run resume, or go back, just before?"


def _chain(chapter: int, entries: _Named, end: str | Leaf) -> dict[str, Question]:
    """One question per entry, each leading to the next on "no"."""
    questions = {}
    for place, (text, symptoms, yes) in enumerate(entries, start=1):
        no = f"{chapter}.{place + 1}" if place < len(entries) else end
        questions[f"{chapter}.{place}"] = Question(
            text=text, check=has_finding(*symptoms), yes=yes, no=no
        )
    return questions


TRIMTAB_TREE: Tree = {
    **{question: TEXTBOOK_TREE[question] for question in _AS_IN_TEXTBOOK},
    "1.1b": Question(
        text="Is a weight, update or optimizer norm NaN or infinite?",
        check=precision.nonfinite_norm,
        yes=textbook.CORRUPTED_STATE,
        no="1.4",
    ),
    "1.4": Question(
        text="Does a finding name its cause by itself?",
        check=has_finding(*(symptom for _, symptoms, _ in _DECISIVE for symptom in symptoms)),
        yes="5.1",
        no="2.1",
    ),
    "2.1": Question(
        text="Did the loss or a norm rise beyond the noise of this run?",
        check=spike.rose,
        yes="2.2",
        no="3.1",
    ),
    "2.2": Question(
        text="Was the loss back in 100 steps (2 records of a thinned log)?",
        check=spike.recovered,
        yes="2.3a",
        no="2.4",
    ),
    "2.4": Question(
        text="Did the log continue for the time that a recovery may take?",
        check=spike.had_its_time,
        yes=leaves.PERSISTENT,
        no=leaves.TOO_EARLY,
    ),
    "4.1": Question(
        text="Did the level of the loss rise?",
        check=has_finding(Symptom.LEVEL_SHIFT),
        yes="4.2",
        no="6.1",
    ),
    "4.4": Question(
        text="Is the rolling mean of the gradient norm trending up?",
        check=slow.gradient_trend,
        yes=textbook.TOO_HOT,
        no=leaves.MOVED_LEVEL,
    ),
    **_chain(5, _DECISIVE, "2.1"),
    **_chain(6, _OTHERS, leaves.UNEXPLAINED),
    "7.1": Question(
        text=_RESUMED, check=spike.resumed, yes=leaves.WRONG_RESUME, no=leaves.REPEATED
    ),
    "7.2": Question(text=_RESUMED, check=spike.resumed, yes=leaves.WRONG_RESUME, no="2.1"),
    "7.3": Question(
        text=_RESUMED, check=spike.resumed, yes=leaves.STATE_LOST, no=leaves.CHANGED_MOMENTS
    ),
}
