"""Leaves of the textbook tree: where a walk ends, and what the textbook says to do there."""

from dataclasses import dataclass

from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The end of a walk."""

    cause: Cause | None
    """None where the tree ends without naming a fault."""
    root_cause: str
    """One sentence, or why there is none."""
    remedy: str
    """The smallest change that mends it."""
    lesson: str
    incident_class: IncidentClass | None = None
    """Set where the tree knows better than the state machine."""
    is_explained: bool = True
    """False where a supported hypothesis says more than the leaf."""


OVERFLOW = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="A value left the range of fp16 (65504) and the loss scaler did not catch it.",
    remedy="Engage dynamic loss scaling (torch.amp.GradScaler), or move from fp16 to bf16.",
    lesson="fp16 needs a loss scale that moves; bf16 has the range of fp32 and needs none.",
)
COLLAPSED_SCALE = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="The loss scale fell under 1: activations are too large for fp16 step after step.",
    remedy="Move from fp16 to bf16, or halve the learning rate and check the init and the size "
    "of the residual stream.",
    lesson="A collapsing loss scale is a model that outgrew fp16, not a run of bad luck.",
)
FROZEN_SCALE = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="The loss scale never moved: dynamic scaling is not engaged, so an overflow "
    "reached the gradient.",
    remedy="Engage dynamic loss scaling (torch.amp.GradScaler), or move from fp16 to bf16.",
    lesson="Log the loss scale: a constant one in fp16 means that nobody is watching for overflow.",
)
DESTRUCTIVE_UPDATE = Leaf(
    cause=Cause.LOGIC_NAN,
    root_cause="A destructive update: most likely an operation gave NaN from finite inputs "
    "(log 0, 0/0, a fully masked row); which one is not recorded.",
    remedy="Go back to the last checkpoint without NaN, run one batch with a finiteness check "
    "after each module, and mend the first one that fails (log_softmax for log(softmax), a "
    "masked mean that survives an empty mask).",
    lesson="A NaN in the loss is one step late: check the gradient before the update is applied.",
)
GRADIENT_FIRST = Leaf(
    cause=None,
    root_cause="A destructive update: the gradient was non-finite while the loss still was "
    "finite, and it was applied to the weights.",
    remedy="Go back to the last checkpoint without NaN and do not apply a step whose gradient "
    "norm is not finite; if the run is fp16, engage dynamic loss scaling or move to bf16.",
    lesson="Test the gradient norm for finiteness before the update, not the loss after it.",
    is_explained=False,
)
CORRUPTED_STATE = Leaf(
    cause=Cause.BIT_FLIP,
    root_cause="A weight or an optimizer moment is no longer finite while the loss still is: a "
    "flipped bit or an overflow in the update.",
    remedy="Go back to the last checkpoint whose norms are finite; if it comes again on the "
    "same rank, replace the device.",
    lesson="Check the norms of weights and moments for finiteness, not the loss alone.",
)
LONG_TAIL = Leaf(
    cause=Cause.RARE_TOKENS,
    root_cause="The gradient of one batch dwarfed all before it: the mark of tokens that the "
    "model had hardly seen.",
    remedy="Allow no batch more than one occurrence of a token seen under 10 times in the "
    "corpus, and clip the gradient norm at 0.5 instead of 1.0.",
    lesson="One rare token in one batch can own the global gradient norm; spread them out.",
)
LR_JUMPED = Leaf(
    cause=Cause.LR_DISCONTINUITY,
    root_cause="The learning rate jumped at the step before the loss did.",
    remedy="Make the schedule continuous: warm up into the new rate, and restore the "
    "scheduler's own state on resume.",
    lesson="Plot the learning rate beside the loss; a jump there explains a jump here.",
)
SAME_BATCH = Leaf(
    cause=Cause.DUPLICATE_BATCH,
    root_cause="The loader served a batch a second time.",
    remedy="Mend the sampler or the resume of the data position so that no batch repeats.",
    lesson="Record a fingerprint of each batch: a repeated one is seen at once.",
)
SPIKE_UNEXPLAINED = Leaf(
    cause=Cause.HARD_BATCH,
    root_cause="Not known: nothing recorded explains the spike; a hard batch is what is left.",
    remedy="None needed for a spike that recovered by itself; record what was missing here.",
    lesson="Most spikes recover; the signals that were not recorded are what would name the cause.",
    is_explained=False,
)
PERSISTENT = Leaf(
    cause=None,
    root_cause="Not known from the log: the optimizer's moments absorbed the spike and hold the "
    "model in a worse place; what set it off is among the hypotheses.",
    remedy="Reload the last checkpoint from before the onset, clip the gradient norm at 0.5, "
    "and spread rare tokens over batches before the restart.",
    lesson="A spike that is not back in 50 records does not come back by itself: keep a "
    "checkpoint older than the onset.",
    is_explained=False,
)
TOO_EARLY = Leaf(
    cause=None,
    root_cause="Not known: the log ends before the loss had the 50 records it may take to recover.",
    remedy="Look again when 50 more records are there.",
    lesson="Do not judge a spike before it had its time.",
)
SCHEDULE = Leaf(
    cause=Cause.WRONG_SCHEDULE,
    root_cause="The learning rate rose while the loss rose: the schedule runs the wrong way "
    "(an inverted cosine, or a warm-up that never ends).",
    remedy="Correct the schedule and restart from the checkpoint before the rise.",
    lesson="Simulate the schedule to its last step before the run.",
)
WEIGHT_DECAY = Leaf(
    cause=Cause.WEIGHT_DECAY,
    root_cause="A weight norm doubled or halved in 200 steps: weight decay does not balance "
    "the updates.",
    remedy="Change weight decay by 2x (up if the norm climbs, down if it falls) and run on "
    "from a checkpoint before the change.",
    lesson="Watch the weight norm of each group, not only the loss.",
)
TOO_HOT = Leaf(
    cause=Cause.LR_TOO_HIGH,
    root_cause="Loss and gradient norm rise together with the schedule in order: the run moves "
    "away from its minimum, by bad data or too high a learning rate.",
    remedy="Halve the learning rate and run on from a checkpoint before the rise.",
    lesson="A slow rise is a divergence at low speed; act while the checkpoint is young.",
)
PLATEAU = Leaf(
    cause=None,
    root_cause="No divergence: schedule, weight norms and gradient norm are steady; the model "
    "has stopped learning.",
    remedy="Look at the evaluation loss; if it is flat too, stop the run.",
    lesson="A plateau is a result, not a fault.",
    incident_class=IncidentClass.PLATEAU,
)
HEALTHY = Leaf(
    cause=None,
    root_cause="None: by the textbook's questions the run is healthy here.",
    remedy="None.",
    lesson="None.",
)
