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

from collections.abc import Mapping
from dataclasses import dataclass

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
        answers.append(
            TreeAnswer(
                id=here,
                question=question.check.__doc__ or question.check.__name__,
                result=result,
                goes_to=following if isinstance(following, str) else "end",
            )
        )
        here = following
    return Walk(answers=tuple(answers), leaf=here)


OVERFLOW = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="A value left the range of fp16 (65504) and the loss scaler did not catch it.",
    remedy="Engage dynamic loss scaling (torch.amp.GradScaler), or move from fp16 to bf16.",
    lesson="fp16 needs a loss scale that moves; bf16 has the range of fp32 and needs none.",
)
COLLAPSED_SCALE = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="The loss scale fell under 1: activations are too large for fp16 at every step.",
    remedy="Move from fp16 to bf16, or halve the learning rate and check the init and the size "
    "of the residual stream.",
    lesson="A collapsing loss scale means that the model has outgrown fp16.",
)
FROZEN_SCALE = Leaf(
    cause=Cause.FP16_OVERFLOW,
    root_cause="The loss scale never moved: dynamic scaling is not engaged, so an overflow "
    "reached the gradient.",
    remedy="Engage dynamic loss scaling (torch.amp.GradScaler), or move from fp16 to bf16.",
    lesson="Log the loss scale: in fp16 a constant one means that overflow is not caught.",
)
DESTRUCTIVE_UPDATE = Leaf(
    cause=Cause.LOGIC_NAN,
    root_cause="A destructive update: most likely an operation gave NaN from finite inputs "
    "(log 0, 0/0, a fully masked row); which one is not recorded.",
    remedy="Go back to the last checkpoint without NaN, run one batch with a finiteness check "
    "after each module, and fix the first one that fails (log_softmax for log(softmax), a "
    "masked mean that survives an empty mask).",
    lesson="A NaN in the loss is one step late: check the gradient before the update is applied.",
)
GRADIENT_FIRST = Leaf(
    cause=None,
    root_cause="A destructive update: the gradient was non-finite while the loss was still "
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
    remedy="Go back to the last checkpoint whose norms are finite; if it happens again on the "
    "same rank, replace the device.",
    lesson="Check the norms of weights and moments for finiteness, not only the loss.",
)
LONG_TAIL = Leaf(
    cause=Cause.RARE_TOKENS,
    root_cause="The gradient of one batch dwarfed all before it, which is typical of tokens that "
    "the model has hardly seen.",
    remedy="Allow no batch more than one occurrence of a token seen under 10 times in the "
    "corpus, and clip the gradient norm at 0.5 instead of 1.0.",
    lesson="One rare token in one batch can dominate the global gradient norm; spread them out.",
)
LR_JUMPED = Leaf(
    cause=Cause.LR_DISCONTINUITY,
    root_cause="The learning rate jumped at the step before the loss did.",
    remedy="Make the schedule continuous: warm up into the new rate, and restore the "
    "scheduler's state on resume.",
    lesson="Plot the learning rate beside the loss: a jump in one explains a jump in the other.",
)
SAME_BATCH = Leaf(
    cause=Cause.DUPLICATE_BATCH,
    root_cause="The loader served a batch a second time.",
    remedy="Fix the sampler, or how the data position is resumed, so that no batch repeats.",
    lesson="Record a fingerprint of each batch: it shows a repeated one at once.",
)
SPIKE_UNEXPLAINED = Leaf(
    cause=Cause.HARD_BATCH,
    root_cause="Not known: no recorded signal explains the spike, which leaves a hard batch.",
    remedy="None needed for a spike that recovered by itself; record the missing signals.",
    lesson="Most spikes recover; the signals that were not recorded could have named the cause.",
    is_explained=False,
)
PERSISTENT = Leaf(
    cause=None,
    root_cause="Not known from the log: the optimizer's moments absorbed the spike and hold the "
    "model in a worse place; what started it is among the hypotheses.",
    remedy="Reload the last checkpoint from before the onset, clip the gradient norm at 0.5, "
    "and spread rare tokens over batches before the restart.",
    lesson="A spike that is not back in 50 records does not come back by itself: keep a "
    "checkpoint older than the onset.",
    is_explained=False,
)
TOO_EARLY = Leaf(
    cause=None,
    root_cause="Not known: the log ends before the 50 records that a recovery may take.",
    remedy="Look again after 50 more records.",
    lesson="Do not judge a spike before it has had time to recover.",
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
    remedy="Change weight decay by 2x (up if the norm climbs, down if it falls) and continue "
    "from a checkpoint before the change.",
    lesson="Watch the weight norm of each group, not only the loss.",
)
TOO_HOT = Leaf(
    cause=Cause.LR_TOO_HIGH,
    root_cause="Loss and gradient norm rise together although the schedule is in order: the run "
    "moves away from its minimum because of bad data or too high a learning rate.",
    remedy="Halve the learning rate and continue from a checkpoint before the rise.",
    lesson="A slow rise is a slow divergence; act while the checkpoint is recent.",
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
    root_cause="None: by the textbook's questions the run is healthy.",
    remedy="None.",
    lesson="None.",
)

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
