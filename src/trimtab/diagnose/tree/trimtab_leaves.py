"""The leaves of trimtab's tree that the textbook does not have."""

from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass
from trimtab.diagnose.tree.walk import Leaf

PERSISTENT = Leaf(
    cause=None,
    root_cause="Not known from the log: the optimizer's moments absorbed the spike and hold the "
    "model in a worse place; what started it is among the hypotheses.",
    remedy="Reload the last checkpoint from before the onset, clip the gradient norm at 0.5, "
    "and spread rare tokens over batches before the restart.",
    lesson="A spike that is not back in 100 steps holds the model in a worse place: keep a "
    "checkpoint older than the onset.",
    is_explained=False,
)
TOO_EARLY = Leaf(
    cause=None,
    root_cause="Not known: the log ends before the time that a recovery may take (100 steps, or 2 "
    "records of a thinned log).",
    remedy="Look again when the log is longer.",
    lesson="Do not judge a spike before it has had time to recover.",
)
MOVED_LEVEL = Leaf(
    cause=Cause.DATA_MIX_SHIFT,
    root_cause="Not known: the loss has moved to a higher level while schedule, weight norms and "
    "gradient norm are steady, which leaves different data.",
    remedy="Compare the evaluation loss before and after: if it did not move, it was the data.",
    lesson="Note changes of the data mix in the run (`trimtab note`): they explain a moved level.",
    is_explained=False,
)
FROZEN = Leaf(
    cause=Cause.PARAMETERS_NOT_UPDATING,
    root_cause="The optimizer adds nothing to the parameters although the learning rate is not 0.",
    remedy="Check that the optimizer holds the parameters that are trained, that they require "
    "gradients, and that nothing sets the update to zero.",
    lesson="Watch the update norm: a loss can look plausible while nothing is learned.",
)
OFF_PLAN = Leaf(
    cause=Cause.WRONG_SCHEDULE,
    root_cause="The learning rate does not follow its plan.",
    remedy="Correct the schedule (first its step count after a resume) and go back to the "
    "checkpoint before it left the plan.",
    lesson="Simulate the schedule to its last step before the run.",
)
DRIFTING = Leaf(
    cause=Cause.WEIGHT_DECAY,
    root_cause="A weight norm has left its trend: it jumped, or it grows or shrinks faster than "
    "the learning rate explains.",
    remedy="If it jumped, compare the weights with the last checkpoint. If it drifts, change "
    "weight decay by 2x (up if the norm climbs, down if it falls) and continue from a checkpoint "
    "before the drift.",
    lesson="Watch the weight norm of each group, not only the loss.",
)
STATE_LOST = Leaf(
    cause=Cause.OPTIMIZER_STATE_LOST,
    root_cause="The optimizer's second moment collapsed at a resume: its state was not loaded.",
    remedy="Resume again from the same checkpoint and load the optimizer's state with it.",
    lesson="A resume without the moments is a new warm-up at full learning rate.",
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
    root_cause="The run did not continue from where it was: a different checkpoint, different "
    "random numbers or different data.",
    remedy="Compare step, random state and data position of the checkpoint with the run before it.",
    lesson="Weights, moments and data must continue where they were: compare the first step after "
    "a resume with the last before it.",
)
NO_LEARNING = Leaf(
    cause=None,
    root_cause="The loss is where it began: nothing has been learned.",
    remedy="Check labels, masks and the learning rate; overfit one batch before the next run.",
    lesson="A run that has not left its first loss after 1,000 steps will not do so by itself.",
    incident_class=IncidentClass.PLATEAU,
)
LEFT_REFERENCE = Leaf(
    cause=None,
    root_cause="Not known: the run has left its reference on the same batches, so the cause is the "
    "model, its state or its settings, not the data.",
    remedy="Compare the settings and states of the two runs at the step where they separate.",
    lesson="A reference on the same data shows shifts that a single run hides.",
    is_explained=False,
)
OTHER_BATCHES = Leaf(
    cause=Cause.WRONG_RESUME,
    root_cause="From this step on the batches differ from those of the reference: the order of the "
    "data is different.",
    remedy="Compare the loader's seed, data position and files with the reference's.",
    lesson="Save the loader's state with the model, and compare fingerprints after a resume.",
)
UNEXPLAINED = Leaf(
    cause=None,
    root_cause="Not known: no recorded signal explains it.",
    remedy="Record the gradient norm, learning rate and weight norms for the next incident.",
    lesson="The signals that were not recorded could have named the cause.",
    is_explained=False,
)
REPEATED = Leaf(
    cause=Cause.DUPLICATE_BATCH,
    root_cause="The loader served a batch that had been served before.",
    remedy="Look for workers with the same seed, a sampler without its epoch, or a resume that "
    "went back in the data.",
    lesson="Record fingerprints of batches: the model memorizes what it sees twice.",
)
WENT_BACK = Leaf(
    cause=Cause.WRONG_RESUME,
    root_cause="Step or data position went back although no resume was recorded.",
    remedy="Compare step and data position of the checkpoint with the run before it.",
    lesson="Save the loader's state with the model.",
)
OVERFLOWING = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="The loss scaler meets one overflow after the other.",
    remedy="Train in bf16, or look for the layer whose activations grow.",
    lesson="A loss scale that keeps falling means that activations keep growing.",
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
    root_cause="A step took many times longer than usual.",
    remedy="Compare the time spent on data with the time of the step; look at the loader, the "
    "file system and the slowest rank.",
    lesson="Prefetch more than one batch, and record the seconds spent on data.",
)
SLOWED = Leaf(
    cause=Cause.SLOW_RANK,
    root_cause="The steps have become slower permanently.",
    remedy="Look for a device that throttles, a rank that is slower than the others, or longer "
    "batches.",
    lesson="One slow rank slows all of them: record the time of each rank.",
)
NOT_RECORDED = Leaf(
    cause=None,
    root_cause="The loss is no longer recorded while the run continues.",
    remedy="Fix the logging first: nothing can be judged without a loss.",
    lesson="A run that does not record its loss cannot be watched.",
)
RESIZED_UPDATE = Leaf(
    cause=Cause.EPSILON_REGIME,
    root_cause="The size of the updates changed and the learning rate does not explain it: the "
    "optimizer's epsilon, betas or moments are not what they were.",
    remedy="Compare epsilon, betas and the loaded optimizer state with those of the run before.",
    lesson="Watch the update norm per learning rate: the loss shows a small update much later.",
)
JUMPED_ACTIVATIONS = Leaf(
    cause=Cause.BIT_FLIP,
    root_cause="Not known: the output of a block changed from one step to the next and no batch "
    "explains it; a corrupted weight fits best.",
    remedy="Compare the weights of that block with those of the last checkpoint.",
    lesson="A corrupted weight shows first in the output of its block.",
    is_explained=False,
)
GROWN_LOGITS = Leaf(
    cause=Cause.ATTENTION_LOGIT_GROWTH,
    root_cause="The attention logits have grown beyond what a softmax can resolve.",
    remedy="Normalise queries and keys (QK-norm), or lower the learning rate of their weights, and "
    "continue from a checkpoint before the growth.",
    lesson="Record the largest attention logit: it grows long before the loss does.",
)
ODD_TOKENS = Leaf(
    cause=Cause.RARE_TOKENS,
    root_cause="The batch has tokens unlike those before: rare ones, or one phrase repeated over "
    "and over.",
    remedy="Look at the batch at this data position, and filter such documents.",
    lesson="Filter repeated and garbled text before tokenising.",
)
