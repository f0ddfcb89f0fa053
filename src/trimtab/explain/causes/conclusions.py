"""Conclusion: the cause of an incident in the words of a post-mortem.

`CONCLUSIONS` has one for each cause of the catalogue. Detectors of users can attach their own to a
finding, as an explanation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.core.causes import AnyCause, Cause, Evidence, Hypothesis, Standing, cause_of
from trimtab.core.findings import Explanation, Finding, Symptom
from trimtab.core.incidents import Incident
from trimtab.core.text import digits


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Why an incident happened, as far as is known, and what to do about it."""

    cause: AnyCause | None
    root_cause: str
    """One sentence, or why the cause is not known."""
    remedy: str
    """The smallest change that fixes it."""
    lesson: str


def opening(incident: Incident) -> Sequence[Finding]:
    """Return the findings at the tick that opened the incident."""
    return [f for f in incident.findings if f.tick == incident.findings[0].tick]


def first_explained(findings: Sequence[Finding]) -> tuple[Finding, Explanation] | None:
    """Return the first finding that carries its explanation."""
    return next(((f, f.explanation) for f in findings if f.explanation is not None), None)


def by_finding(finding: Finding, explanation: Explanation) -> Conclusion:
    """Return the conclusion that a finding carries."""
    return Conclusion(
        cause=cause_of(explanation.cause_id, explanation.cause_title),
        root_cause=f"{explanation.cause_title}: {finding.symptom} at step {finding.step}, found by "
        f"detector {finding.detector}.",
        remedy=explanation.remedy,
        lesson="None given by the detector.",
    )


def hypothesis_of(finding: Finding) -> Hypothesis | None:
    """Return the hypothesis of a finding that carries its explanation."""
    explained = finding.explanation
    if explained is None:
        return None
    seen = f"{finding.symptom}: {finding.signal} {digits(finding.value)} at step {finding.step}"
    return Hypothesis(
        cause=cause_of(explained.cause_id, explained.cause_title),
        statement=f"{explained.cause_title} (found by detector {finding.detector})",
        standing=Standing.SUPPORTED,
        evidence=(Evidence(signal=finding.signal, observation=seen, favors=True),),
    )


def each_cause_once(found: Iterable[Hypothesis | None]) -> Iterable[Hypothesis]:
    """Return the first hypothesis for each cause; those without a cause by their statement."""
    first: dict[object, Hypothesis] = {}
    for item in found:
        if item is not None:
            first.setdefault(item.cause or item.statement, item)
    return first.values()


def is_users_alarm(incident: Incident) -> bool:
    """Return whether only users' detectors raised the alarm."""
    return not any(isinstance(finding.symptom, Symptom) for finding in opening(incident))


def by_users_alarm(incident: Incident) -> Conclusion:
    """Return the conclusion if only a user's detector raised the alarm, and no cause matches it."""
    finding = opening(incident)[0]
    seen = f"{finding.signal} {digits(finding.value)} at step {finding.step}"
    return Conclusion(
        cause=None,
        root_cause=f"Not known: {finding.symptom}, reported by {finding.detector}.",
        remedy=f"Look at {seen}.",
        lesson="A detector that knows the cause can attach an explanation to its finding.",
    )


DESTRUCTIVE_UPDATE = (
    "a destructive update wrote NaN into a parameter, and it has stayed there since (first seen at "
    "step {step}; which tensor is not recorded)"
)
"""What a loss that stays non-finite means, whatever caused it."""

_ALL = (
    Conclusion(
        Cause.HARD_BATCH,
        "One batch was much harder than the others; the model and its state are as before.",
        "None needed: it is over with the batch. Look at the batch if it comes again.",
        "Most single spikes are data; a reference loss per batch shows it.",
    ),
    Conclusion(
        Cause.RARE_TOKENS,
        "The batch has tokens unlike those before: rare ones, or one phrase repeated over and "
        "over.",
        "Look at the batch at this data position, and filter such documents; allow no batch more "
        "than one occurrence of a token seen under 10 times in the corpus.",
        "Filter repeated and garbled text before tokenising.",
    ),
    Conclusion(
        Cause.DUPLICATE_BATCH,
        "The loader served a batch that had been served before.",
        "Look for workers with the same seed, a sampler without its epoch, or a resume that went "
        "back in the data.",
        "Record fingerprints of batches: the model memorizes what it sees twice.",
    ),
    Conclusion(
        Cause.DATA_MIX_SHIFT,
        "From this step on the data is of a different kind.",
        "Compare the evaluation loss before and after: if it did not move, it was the data.",
        "Note changes of the data mix in the run (`trimtab note`): they explain a moved level.",
    ),
    Conclusion(
        Cause.LR_DISCONTINUITY,
        "The learning rate jumped at the step before the loss did.",
        "Make the schedule continuous: warm up into the new rate, and restore the scheduler's "
        "state on resume.",
        "Plot the learning rate beside the loss: a jump in one explains a jump in the other.",
    ),
    Conclusion(
        Cause.OPTIMIZER_STATE_LOST,
        "The optimizer's moments collapsed at a resume: its state was not loaded, or not all of "
        "it.",
        "Resume again from the same checkpoint and load the optimizer's state with it.",
        "A resume without the moments is a new warm-up at full learning rate.",
    ),
    Conclusion(
        Cause.STALE_SECOND_MOMENT,
        "The second moment is too small for the gradient and does not follow it: every update is "
        "too large.",
        "Compare betas and state with those before; a beta2 of 0.95 forgets a stale second moment "
        "in 20 steps.",
        "A second moment that is too small makes every update too large.",
    ),
    Conclusion(
        Cause.EPSILON_REGIME,
        "The updates shrank and the learning rate does not explain it: the optimizer's epsilon is "
        "larger than the root of its second moment.",
        "Compare epsilon, betas and the loaded optimizer state with those of the run before.",
        "Watch the update norm per learning rate: the loss shows a small update much later.",
    ),
    Conclusion(
        Cause.ATTENTION_LOGIT_GROWTH,
        "The attention logits grow beyond what a softmax can resolve.",
        "Normalise queries and keys (QK-norm), or lower the learning rate of their weights, and "
        "continue from a checkpoint before the growth.",
        "Record the largest attention logit: it grows long before the loss does.",
    ),
    Conclusion(
        Cause.OUTPUT_LOGIT_DRIFT,
        "The output logits grow, and log Z with them: the model becomes overconfident.",
        "Add a z-loss (1e-4) or decay the gain of the last norm, and continue from a checkpoint "
        "before the growth.",
        "Record log Z: it drifts long before the loss does.",
    ),
    Conclusion(
        Cause.FP16_OVERFLOW,
        "A value left the range of fp16 (65504): the loss scaler overflows again and again, does "
        "not move, or is missing.",
        "Train in bf16, or look for the layer whose activations grow; check that there is a "
        "scaler and that its update is called at every step.",
        "A loss scale that keeps falling means that activations keep growing.",
    ),
    Conclusion(
        Cause.LOGIC_NAN,
        "An operation gave NaN from finite inputs (log 0, 0/0, a fully masked row); which one is "
        "not recorded.",
        "Run one batch with a finiteness check after each module, and fix the first one that fails "
        "(log_softmax for log(softmax), a masked mean that survives an empty mask). If the weights "
        "hold NaN, continue from the last checkpoint without it.",
        "Catch a NaN before the update: check the gradient, the loss shows it one step late.",
    ),
    Conclusion(
        Cause.BIT_FLIP,
        "A weight, a gradient or a moment was corrupted while the data was as usual: a flipped "
        "bit, or an overflow in the update.",
        "If the weights are damaged, continue from the last checkpoint with the usual norms; if it "
        "happens again on the same rank, replace the device.",
        "Check the norms of weights and moments for finiteness, not only the loss.",
    ),
    Conclusion(
        Cause.BAD_DEVICE,
        "One rank computes wrong gradients, at some steps but again and again.",
        "Compare the gradient norms of the ranks, take the rank out, and continue from a "
        "checkpoint before the first burst.",
        "A fault that comes and goes without a cause in the data is hardware until shown "
        "otherwise.",
    ),
    Conclusion(
        Cause.REPLICAS_OUT_OF_SYNC,
        "The weights of one rank differ from those of the others: averaged gradients keep the "
        "difference.",
        "Compare checksums of the weights over the ranks, and broadcast those of a good one, or "
        "restart from the last checkpoint.",
        "Data-parallel ranks never compare weights by themselves: a checksum every N steps does.",
    ),
    Conclusion(
        Cause.LOADER_STALL,
        "Steps wait for the data loader.",
        "Compare the time spent on data with the time of the step; look at the loader, the file "
        "system and the slowest rank.",
        "Prefetch more than one batch, and record the seconds spent on data.",
    ),
    Conclusion(
        Cause.SLOW_RANK,
        "The steps have become slower permanently.",
        "Look for a device that throttles, a rank that is slower than the others, or longer "
        "batches.",
        "One slow rank slows all of them: record the time of each rank.",
    ),
    Conclusion(
        Cause.WRONG_RESUME,
        "The run did not continue from where it was: a different checkpoint, different random "
        "numbers or different data.",
        "Compare step, random state and data position of the checkpoint with the run before it.",
        "Weights, moments and data must continue where they were: compare the first step after a "
        "resume with the last before it.",
    ),
    Conclusion(
        Cause.PARAMETERS_NOT_UPDATING,
        "The optimizer no longer changes some of the parameters, although the learning rate is not "
        "0.",
        "Check that the optimizer holds the parameters that are trained, that they require "
        "gradients, and that nothing sets the update to zero.",
        "Watch the update norm: a loss can look plausible while nothing is learned.",
    ),
    Conclusion(
        Cause.BATCH_SIZE_CHANGE,
        "Batches or sequences changed in size: the numbers are noisier or calmer, and no fault.",
        "None needed; announce planned changes (`trimtab note`).",
        "Noise goes as one over the root of the batch size.",
    ),
    Conclusion(
        Cause.LR_TOO_HIGH,
        "The learning rate is too high for this model: it is unstable from the warm-up on, or "
        "learns nothing.",
        "Lower the peak by a factor of 2 to 3, warm up longer, and restart; QK-norm allows higher "
        "rates.",
        "Sweep the learning rate on a small model first.",
    ),
    Conclusion(
        Cause.LOSS_REDUCTION_BUG,
        "Loss or gradient are multiplied by a constant: summed where they should be averaged (over "
        "micro-batches, ranks or tokens).",
        "Check how the loss is reduced: k micro-batches must give the gradient of one batch k "
        "times as large.",
        "A constant factor in the gradient norm is code, not data.",
    ),
    Conclusion(
        Cause.WEIGHT_DECAY,
        "Weight decay does not balance the updates: weight norms leave their trend.",
        "Change weight decay by 2x (up if norms climb, down if they fall) and continue from a "
        "checkpoint before the drift.",
        "Watch the weight norm of each group, not only the loss.",
    ),
    Conclusion(
        Cause.WRONG_SCHEDULE,
        "The learning rate does not follow its plan: it rises where it should fall.",
        "Correct the schedule (first its step count after a resume) and go back to the checkpoint "
        "before it left the plan.",
        "Simulate the schedule to its last step before the run.",
    ),
)

CONCLUSIONS: Mapping[AnyCause | None, Conclusion] = {item.cause: item for item in _ALL}
"""By cause of the catalogue."""

_WATCHED = "`trimtab.watch(model, optimizer)` records it"
_OF_BATCH = "`guard.record(loss=loss, batch=batch)` records it"

RECORDED_BY: Mapping[str, str] = {
    "grad_norm": "`guard.clip_grad_norm_(1.0)` records it",
    "loss_scale": "log `scaler.get_scale()`",
    "dtype": '`trimtab.watch(..., facts={"dtype": "bf16"})` states it',
    "fingerprint": _OF_BATCH,
    "token_rarity": _OF_BATCH,
    "unique_token_share": _OF_BATCH,
    "tokens": "`guard.record(loss=loss, tokens=count)` records it",
    "max_attention_logit": "`guard.record(loss=loss, max_attention_logit=value)` records it",
    "max_log_z": "`guard.record(loss=loss, max_log_z=value)` records it",
}
"""By signal: the line that records it, where `trimtab.watch` alone does not."""


def how_to_record(signal: str) -> str:
    """Return how a signal gets into the records."""
    return RECORDED_BY.get(signal, _WATCHED)


NOTHING_FITS = Conclusion(
    None,
    "Not known: nothing that was recorded speaks for a known cause.",
    "Repeat the step from the state before it: that tells the batch from the state "
    "(`trimtab.watch(..., batch_loss=...)` does so by itself).",
    "The signals that were not recorded could have named the cause.",
)

USEFUL = {
    "grad_norm": "the gradient norm",
    "lr": "the learning rate",
    "param_norm by group": "weight norms",
    "fingerprint": "batch fingerprints",
}
"""What to record where nothing speaks for a cause, by signal."""

BATCH_NOT_FINITE = Conclusion(
    None,
    "The batch itself holds NaN or infinity: the data or what prepares it, not the model.",
    "Look at this batch and fix what prepares it; check batches for finiteness in the loader.",
    "A NaN in the data looks like one of the model: check the inputs first.",
)
"""What an experiment has shown; the catalogue has no such cause."""

BY_SYMPTOM: Mapping[str, Conclusion] = {
    Symptom.MISSING_LOSS: Conclusion(
        None,
        "The loss is no longer recorded while the run continues.",
        "Fix the logging first: nothing can be judged without a loss.",
        "A run that does not record its loss cannot be watched.",
    ),
    Symptom.SLOW: Conclusion(
        None,
        "Not known: steps take longer, and nothing else in the run has changed.",
        "Look at what else the machine does, at its clocks and at the network.",
        "A pace that falls without a change in the run has its cause outside of it.",
    ),
    Symptom.REFERENCE_GAP: Conclusion(
        None,
        "Not known: the run has left its reference on the same batches, so the cause is the model, "
        "its state or its settings, not the data.",
        "Compare the settings and states of the two runs at the step where they separate.",
        "A reference on the same data shows shifts that a single run hides.",
    ),
    Symptom.NO_LEARNING: Conclusion(
        None,
        "The loss is where it began: nothing has been learned.",
        "Check labels, masks and the learning rate; overfit one batch before the next run.",
        "A run that has not left its first loss after 1,000 steps will not do so by itself.",
    ),
}
"""Where nothing known fits, but a finding says what happened."""
