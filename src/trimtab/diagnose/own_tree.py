"""The tree for trimtab's own findings: the textbook's questions where they hold, ours where not.

1.x non-finite        as in the textbook
2.1 beyond the run's own noise? --> 2.2 back in 100 steps? --> 2.3 norm, LR, batch
3.x mixed precision   as in the textbook
4.1 did the level rise? --> LR, weight norm, gradient; else the data
5.x what a detector names by itself: frozen, schedule, norms, order of data, resume, no learning
"""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.diagnose import leaves
from trimtab.diagnose.leaves import Leaf
from trimtab.diagnose.panels import named, slow, spike
from trimtab.diagnose.tree import QUESTIONS, Question

PERSISTENT = dataclasses.replace(
    leaves.PERSISTENT,
    lesson="A spike that is not back in 100 steps holds the model in a worse place: keep a "
    "checkpoint older than the onset.",
)
TOO_EARLY = dataclasses.replace(
    leaves.TOO_EARLY,
    root_cause="Not known: the log ends before the loss had the time it may take to recover "
    "(100 steps, or 2 records of a thinned log).",
    remedy="Look again when the log is longer.",
)
MOVED_LEVEL = Leaf(
    cause=Cause.F04,
    root_cause="Not known: the loss has moved to a higher level while schedule, weight norms and "
    "gradient norm are steady; other data is what is left.",
    remedy="Compare the evaluation loss before and after: if it did not move, it was the data.",
    lesson="Note changes of the data mix in the run (`trimtab note`): a moved level then explains "
    "itself.",
    is_explained=False,
)
FROZEN = Leaf(
    cause=Cause.F19,
    root_cause="The optimizer adds nothing to the parameters although the learning rate is not 0.",
    remedy="Check that the optimizer holds the parameters that are trained, that they require "
    "gradients, and that nothing sets the update to zero.",
    lesson="Watch the update norm: a loss can stay plausible while nothing is learnt.",
)
OFF_PLAN = Leaf(
    cause=Cause.F24,
    root_cause="The learning rate does not follow its plan.",
    remedy="Correct the schedule (its step count after a resume first) and go back to the "
    "checkpoint before it left the plan.",
    lesson="Simulate the schedule to its last step before the run.",
)
LR_JUMPED = Leaf(
    cause=Cause.F05,
    root_cause="The learning rate jumped from one record to the next.",
    remedy="Look for a scheduler that was built anew or stepped twice, and restore its state.",
    lesson="Save and load the scheduler with the model.",
)
DRIFTING = Leaf(
    cause=Cause.F23,
    root_cause="A weight norm doubled or halved in 200 steps.",
    remedy="Change weight decay by 2x (up if the norm climbs, down if it falls) and run on "
    "from a checkpoint before the change.",
    lesson="Watch the weight norm of each group, not only the loss.",
)
STATE_LOST = Leaf(
    cause=Cause.F06,
    root_cause="The optimizer's second moment collapsed at a resume: its state was not loaded.",
    remedy="Resume again from the same checkpoint and load the optimizer's state with it.",
    lesson="A checkpoint without the moments is a new warm-up at full learning rate.",
)
WRONG_RESUME = Leaf(
    cause=Cause.F18,
    root_cause="After the resume the loss differs from what the same steps had before: another "
    "checkpoint, other random numbers or other data.",
    remedy="Compare step, random state and data position of the checkpoint with the run before it.",
    lesson="The first losses after a resume should repeat the ones before it.",
)
NO_LEARNING = Leaf(
    cause=None,
    root_cause="The loss is where it began: nothing has been learnt.",
    remedy="Check labels, masks and the learning rate; overfit one batch before the next run.",
    lesson="A run that has not left its first loss after 1,000 steps will not by itself.",
    incident_class=IncidentClass.PLATEAU,
)
LEFT_REFERENCE = Leaf(
    cause=None,
    root_cause="Not known: the run has parted from its reference on the same batches, so it is the "
    "model, its state or its settings, not the data.",
    remedy="Compare the two runs' settings and states at the step where they part.",
    lesson="A reference on the same data shows shifts that one run alone hides.",
    is_explained=False,
)
OTHER_BATCHES = Leaf(
    cause=Cause.F18,
    root_cause="From here on the batches are not those of the reference: the order of the data "
    "differs.",
    remedy="Compare the loader's seed, data position and files with the reference's.",
    lesson="Save the loader's state with the model, and compare fingerprints after a resume.",
)
UNEXPLAINED = Leaf(
    cause=None,
    root_cause="Not known: nothing recorded explains it.",
    remedy="Record the gradient norm, learning rate and weight norms; look again at the next one.",
    lesson="What was not recorded is what would name the cause.",
    is_explained=False,
)

_NAMED: tuple[tuple[str, Symptom, Leaf], ...] = (
    ("Are parameters not updating?", Symptom.FROZEN, FROZEN),
    ("Is the learning rate off its plan?", Symptom.LR_OFF_PLAN, OFF_PLAN),
    ("Was the optimizer's state lost at a resume?", Symptom.STATE_LOST, STATE_LOST),
    ("Did the loss not continue after a resume?", Symptom.RESUME_GAP, WRONG_RESUME),
    ("Did a weight norm double or halve?", Symptom.NORM_DRIFT, DRIFTING),
    ("Is nothing being learnt?", Symptom.NO_LEARNING, NO_LEARNING),
    ("Are the batches no longer those of the reference?", Symptom.OTHER_BATCH, OTHER_BATCHES),
    ("Did the run leave its reference?", Symptom.REFERENCE_GAP, LEFT_REFERENCE),
)


def _chain() -> dict[str, Question]:
    """The questions about what a detector names by itself, one after the other."""
    questions = {}
    for place, (text, symptom, leaf) in enumerate(_NAMED, start=1):
        following: str | Leaf = f"5.{place + 1}" if place < len(_NAMED) else UNEXPLAINED
        questions[f"5.{place}"] = Question(
            text=text, panel=named.panel_of(symptom), yes=leaf, no=following
        )
    return questions


OWN_QUESTIONS = {
    **QUESTIONS,
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
        yes=PERSISTENT,
        no=TOO_EARLY,
    ),
    "4.1": Question(
        text="Did the level of the loss rise?",
        panel=named.panel_of(Symptom.LEVEL_SHIFT),
        yes="4.2",
        no="5.1",
    ),
    "4.4": Question(
        text="Is the rolling mean of the gradient norm trending up?",
        panel=slow.gradient_trend,
        yes=leaves.TOO_HOT,
        no=MOVED_LEVEL,
    ),
    **_chain(),
}
