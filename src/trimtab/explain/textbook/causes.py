"""The cause by the textbook's tree, with the suspects that the tree does not ask about.

walk --> leaf --> conclusion
suspects that fit the class, each with its checks --> hypotheses
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.causes import AnyCause, Cause, Hypothesis, Standing
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.explain.causes import conclusions
from trimtab.explain.context import IncidentContext
from trimtab.explain.diagnosis import Diagnosis, make_diagnosis
from trimtab.explain.evidence.checks import (
    IncidentCheck,
    gradient_first,
    nonfinite_loss,
    resumed,
    stays_nonfinite,
)
from trimtab.explain.textbook import tree as checks
from trimtab.explain.textbook.tree import Walk, walk


@dataclass(frozen=True, slots=True)
class Suspect:
    """A possible cause and the checks that can support it or rule it out."""

    cause: Cause | None
    statement: str
    signs: tuple[IncidentCheck, ...]
    """One yes supports it; if every recorded one says no, it is ruled out."""
    requires: tuple[IncidentCheck, ...] = ()
    """One no rules it out, whatever the signs say."""


_DESTRUCTIVE = Suspect(None, conclusions.DESTRUCTIVE_UPDATE, (stays_nonfinite,))
_OVERFLOW = Suspect(
    Cause.FP16_OVERFLOW,
    "a value left the range of fp16",
    (gradient_first,),
    requires=(checks.is_half_precision,),
)
_LOGIC_NAN = Suspect(
    Cause.LOGIC_NAN,
    "an operation gave NaN from finite inputs (log 0, 0/0, a full mask)",
    (checks.loss_first,),
)
_LONG_TAIL = Suspect(
    Cause.RARE_TOKENS,
    "tokens that the model had hardly seen dominated the gradient of one batch",
    (checks.long_tail, checks.odd_tokens),
)
_LR_JUMP = Suspect(Cause.LR_DISCONTINUITY, "the learning rate jumped", (checks.lr_jump,))
_SAME_BATCH = Suspect(
    Cause.DUPLICATE_BATCH, "the loader served a batch a second time", (checks.repeated_batch,)
)
_STATE_LOST = Suspect(
    Cause.OPTIMIZER_STATE_LOST, "a resume did not bring back the optimizer's moments", (resumed,)
)
_SCHEDULE = Suspect(Cause.WRONG_SCHEDULE, "the schedule runs the wrong way", (checks.lr_rising,))
_DECAY = Suspect(
    Cause.WEIGHT_DECAY, "weight decay does not balance the updates", (checks.norm_changed,)
)
_TOO_HOT = Suspect(
    Cause.LR_TOO_HIGH,
    "the learning rate is too high for this part of training",
    (checks.gradient_trend,),
)
_BIT_FLIP = Suspect(
    Cause.BIT_FLIP,
    "a flipped bit or an overflow in the update corrupted a weight or a moment",
    (checks.nonfinite_norm,),
)


def suspects(context: IncidentContext) -> tuple[Suspect, ...]:
    """Return the suspects, in the order of how often they are true for such an incident."""
    if context.incident.incident_class is IncidentClass.SILENT:
        return (_SCHEDULE, _DECAY, _TOO_HOT, _BIT_FLIP)
    sudden = (_LONG_TAIL, _LR_JUMP, _SAME_BATCH, _STATE_LOST)
    if nonfinite_loss(context).is_yes:
        return (_DESTRUCTIVE, _OVERFLOW, _LOGIC_NAN, *sudden)
    return (*sudden, _OVERFLOW)


def explain_by_tree(context: IncidentContext) -> Diagnosis:
    """Explain one incident by the textbook's questions."""
    incident = context.incident
    walked = walk(context)
    suspected = [_judge(suspect, context) for suspect in suspects(context)]
    conclusion = _conclude(incident, walked, suspected)
    if walked.leaf.incident_class is not None:  # the questions know it better than the curve
        incident = dataclasses.replace(incident, incident_class=walked.leaf.incident_class)
        context = dataclasses.replace(context, incident=incident)
    hypotheses = _collect(incident, walked, suspected, conclusion.cause)
    return make_diagnosis(context, conclusion, hypotheses, walk=walked)


def _conclude(
    incident: Incident, walked: Walk, suspected: Sequence[Hypothesis]
) -> conclusions.Conclusion:
    """Return the explanation of an opening finding, else what the tree names.

    Where the tree names nothing, the explanation of a later finding or the best supported suspect
    replaces it.
    """
    leaf = walked.leaf
    explained = conclusions.first_explained(conclusions.opening(incident))
    if explained is None and (leaf.cause is None or not leaf.is_explained):
        explained = conclusions.first_explained(incident.findings)
    if explained is not None:
        return conclusions.by_finding(*explained)
    if conclusions.is_users_alarm(incident) and not any(
        answer.result.is_yes for answer in walked.answers
    ):
        return conclusions.by_users_alarm(incident)
    # Suspects are in the order of how often they are true, so the first supported one is the best.
    best = next((item for item in suspected if item.standing is Standing.SUPPORTED), None)
    if leaf.is_explained or best is None:
        return leaf
    seen = "; ".join(item.observation for item in best.evidence if item.favors)
    return dataclasses.replace(
        leaf,
        cause=best.cause or leaf.cause,
        root_cause=f"Best supported: {best.statement} ({seen}).",
    )


def _from_walk(walked: Walk, known: Sequence[Hypothesis]) -> Hypothesis | None:
    """Return the hypothesis that the tree ended in, with the evidence of the same suspect.

    The tree supports it if the leaf explains the incident and its last answer was recorded. Where
    the suspect's checks rule out what the tree names, the hypothesis stays open.
    """
    leaf, last = walked.leaf, walked.answers[-1]
    if leaf.cause is None:
        return None
    standing = Standing.SUPPORTED if leaf.is_explained and last.result.is_answer else Standing.OPEN
    statement = leaf.root_cause.removeprefix("Not known: ").rstrip(".")
    evidence = [a.result.to_evidence() for a in walked.answers if a.result.is_yes]
    same = next((item for item in known if item.cause is leaf.cause), None)
    if same is not None:
        statement = same.statement
        evidence = [*same.evidence, *evidence]
        if same.standing is Standing.SUPPORTED:
            standing = Standing.SUPPORTED
        elif same.standing is Standing.RULED_OUT:
            standing = Standing.OPEN
    return Hypothesis(
        cause=leaf.cause,
        statement=statement,
        standing=standing,
        evidence=tuple(dict.fromkeys(evidence)),
    )


def _collect(
    incident: Incident, walked: Walk, suspected: Sequence[Hypothesis], cause: AnyCause | None
) -> tuple[Hypothesis, ...]:
    """Return all hypotheses, each cause once: supported ones first, then open, then ruled out.

    Among equals the cause that the diagnosis names comes first.
    """
    order = list(Standing)
    given = map(conclusions.hypothesis_of, incident.findings)
    return tuple(
        sorted(
            conclusions.each_cause_once((*given, _from_walk(walked, suspected), *suspected)),
            key=lambda item: (order.index(item.standing), cause is None or item.cause != cause),
        )
    )


def _judge(suspect: Suspect, context: IncidentContext) -> Hypothesis:
    requirements = [check(context).to_evidence() for check in suspect.requires]
    signs = [check(context).to_evidence() for check in suspect.signs]
    answers = {sign.favors for sign in signs}
    # A requirement is stronger than any sign: without fp16 no value leaves its range.
    if any(item.favors is False for item in requirements):
        standing = Standing.RULED_OUT
    elif True in answers:
        standing = Standing.SUPPORTED
    elif False in answers:
        standing = Standing.RULED_OUT
    else:
        standing = Standing.OPEN
    return Hypothesis(
        cause=suspect.cause,
        statement=suspect.statement.format(step=context.incident.peak.step),
        standing=standing,
        evidence=(*requirements, *signs),
    )
