"""The ends of trimtab's own tree that the textbook does not have."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass
from trimtab.diagnose.tree import textbook_leaves as leaves
from trimtab.diagnose.tree.textbook_leaves import Leaf

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
    cause=Cause.DATA_MIX_SHIFT,
    root_cause="Not known: the loss has moved to a higher level while schedule, weight norms and "
    "gradient norm are steady; other data is what is left.",
    remedy="Compare the evaluation loss before and after: if it did not move, it was the data.",
    lesson="Note changes of the data mix in the run (`trimtab note`): a moved level then explains "
    "itself.",
    is_explained=False,
)
FROZEN = Leaf(
    cause=Cause.PARAMETERS_NOT_UPDATING,
    root_cause="The optimizer adds nothing to the parameters although the learning rate is not 0.",
    remedy="Check that the optimizer holds the parameters that are trained, that they require "
    "gradients, and that nothing sets the update to zero.",
    lesson="Watch the update norm: a loss can stay plausible while nothing is learnt.",
)
OFF_PLAN = Leaf(
    cause=Cause.WRONG_SCHEDULE,
    root_cause="The learning rate does not follow its plan.",
    remedy="Correct the schedule (its step count after a resume first) and go back to the "
    "checkpoint before it left the plan.",
    lesson="Simulate the schedule to its last step before the run.",
)
DRIFTING = Leaf(
    cause=Cause.WEIGHT_DECAY,
    root_cause="A weight norm has left its own course: it jumped, or grows or shrinks faster than "
    "the learning rate explains.",
    remedy="If it jumped, compare the weights with the last checkpoint. If it drifts, change "
    "weight decay by 2x (up if the norm climbs, down if it falls) and run on from a checkpoint "
    "before.",
    lesson="Watch the weight norm of each group, not only the loss.",
)
STATE_LOST = Leaf(
    cause=Cause.OPTIMIZER_STATE_LOST,
    root_cause="The optimizer's second moment collapsed at a resume: its state was not loaded.",
    remedy="Resume again from the same checkpoint and load the optimizer's state with it.",
    lesson="A checkpoint without the moments is a new warm-up at full learning rate.",
)
CHANGED_MOMENTS = Leaf(
    cause=Cause.STALE_SECOND_MOMENT,
    root_cause="The optimizer's moments changed at once in the middle of the run: its betas or its "
    "state are not what they were, or the second moment no longer follows the gradient.",
    remedy="Compare betas, epsilon and state with those before; a beta2 of 0.95 forgets a stale "
    "second moment in 20 steps.",
    lesson="A second moment that is too small makes every update too large.",
)
WRONG_RESUME = Leaf(
    cause=Cause.WRONG_RESUME,
    root_cause="The run did not go on from where it was: another checkpoint, other random numbers "
    "or other data.",
    remedy="Compare step, random state and data position of the checkpoint with the run before it.",
    lesson="Weights, moments and data must go on where they were: compare the first step after a "
    "resume with the last before it.",
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
    cause=Cause.WRONG_RESUME,
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
REPEATED = Leaf(
    cause=Cause.DUPLICATE_BATCH,
    root_cause="The loader served a batch that had been served before.",
    remedy="Look for workers with the same seed, a sampler without its epoch, or a resume that "
    "went back in the data.",
    lesson="Record fingerprints of batches: what is learnt twice is learnt by heart.",
)
WENT_BACK = Leaf(
    cause=Cause.WRONG_RESUME,
    root_cause="Step or data position went back without a resume that was noted.",
    remedy="Compare step and data position of the checkpoint with the run before it.",
    lesson="Save the loader's state with the model.",
)
OVERFLOWING = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="The loss scaler meets overflow after overflow.",
    remedy="Train in bf16, or look for the layer whose activations grow.",
    lesson="A scale that keeps falling is a model that keeps growing.",
)
FIXED_SCALE = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="The loss scale has not moved for longer than its growth interval: small gradients "
    "may be lost as zeros.",
    remedy="Check that the scaler's update is called at every step.",
    lesson="A loss scale that never moves is not a dynamic one.",
)
STALLED = Leaf(
    cause=Cause.LOADER_STALL,
    root_cause="A step waited many times longer than usual.",
    remedy="Compare the time spent on data with the time of the step; look at the loader, the "
    "file system and the slowest rank.",
    lesson="Prefetch more than one batch, and record the seconds spent on data.",
)
SLOWED = Leaf(
    cause=Cause.SLOW_RANK,
    root_cause="The steps have become slower for good.",
    remedy="Look for a device that throttles, a rank that is slower than the others, or longer "
    "batches.",
    lesson="One slow rank slows all: keep the time of each rank.",
)
NOT_RECORDED = Leaf(
    cause=None,
    root_cause="The loss is no longer recorded while steps go on.",
    remedy="Mend the logging before anything else: nothing can be judged without a loss.",
    lesson="A run without numbers is a run without anybody on the bridge.",
)
RESIZED_UPDATE = Leaf(
    cause=Cause.EPSILON_REGIME,
    root_cause="The updates have another size while the learning rate does not explain it: the "
    "optimizer's epsilon, betas or moments are not what they were.",
    remedy="Compare epsilon, betas and the loaded optimizer state with those of the run before.",
    lesson="Watch the update by learning rate: the loss shows a small update only much later.",
)
JUMPED_ACTIVATIONS = Leaf(
    cause=Cause.BIT_FLIP,
    root_cause="Not known: a block's output changed at once from one step to the next while no "
    "batch explains it; a corrupted weight is what fits best.",
    remedy="Compare the weights of that block with those of the last checkpoint.",
    lesson="A weight that is hit shows in its block's output first.",
    is_explained=False,
)
GROWN_LOGITS = Leaf(
    cause=Cause.ATTENTION_LOGIT_GROWTH,
    root_cause="The attention logits have grown beyond what a softmax can tell apart.",
    remedy="Normalise queries and keys (QK-norm), or lower the learning rate of their weights, and "
    "run on from a checkpoint before the growth.",
    lesson="Record the largest attention logit: it grows long before the loss does.",
)
ODD_TOKENS = Leaf(
    cause=Cause.RARE_TOKENS,
    root_cause="The batch has tokens unlike those before: rare ones, or one phrase again and "
    "again.",
    remedy="Look at the batch at this data position, and filter such documents.",
    lesson="Filter repeated and garbled text before tokenising.",
)
