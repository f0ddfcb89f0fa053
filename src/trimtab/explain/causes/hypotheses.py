"""Hypotheses beside a decision tree, with the evidence for and against each.

They come from three sources: the suspects that fit the class of the incident, the leaf that the
tree ended in, and the explanations that findings carry.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.causes import AnyCause, Cause, Evidence, Hypothesis, Standing, cause_of
from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence import precision, slow, spike
from trimtab.explain.evidence.check import Check, CheckResult, Outcome, number
from trimtab.explain.tree.walk import Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A possible cause and the checks that can support it or rule it out."""

    cause: Cause | None
    statement: str
    signs: tuple[Check, ...]
    """One yes supports it; if every recorded one says no, it is ruled out."""
    requires: tuple[Check, ...] = ()
    """One no rules it out, whatever the signs say."""


_DESTRUCTIVE = Suspect(
    cause=None,
    statement="a destructive update wrote NaN into a parameter, and it has stayed there since "
    "(first seen at step {step}; which tensor is not recorded)",
    signs=(precision.stays_nonfinite,),
)
_OVERFLOW = Suspect(
    cause=Cause.FP16_OVERFLOW,
    statement="a value left the range of fp16",
    requires=(precision.half_precision,),
    signs=(precision.gradient_first,),
)
_LOGIC_NAN = Suspect(
    cause=Cause.LOGIC_NAN,
    statement="an operation gave NaN from finite inputs (log 0, 0/0, a full mask)",
    signs=(precision.loss_first,),
)
_LONG_TAIL = Suspect(
    cause=Cause.RARE_TOKENS,
    statement="tokens that the model had hardly seen dominated the gradient of one batch",
    signs=(spike.long_tail, spike.odd_tokens),
)
_LR_JUMP = Suspect(
    cause=Cause.LR_DISCONTINUITY,
    statement="the learning rate jumped",
    signs=(spike.lr_jump,),
)
_SAME_BATCH = Suspect(
    cause=Cause.DUPLICATE_BATCH,
    statement="the loader served a batch a second time",
    signs=(spike.repeated_batch,),
)
_STATE_LOST = Suspect(
    cause=Cause.OPTIMIZER_STATE_LOST,
    statement="a resume did not bring back the optimizer's moments",
    signs=(spike.resumed,),
)
_SCHEDULE = Suspect(
    cause=Cause.WRONG_SCHEDULE,
    statement="the schedule runs the wrong way",
    signs=(slow.lr_rising,),
)
_DECAY = Suspect(
    cause=Cause.WEIGHT_DECAY,
    statement="weight decay does not balance the updates",
    signs=(slow.norm_changed,),
)
_TOO_HOT = Suspect(
    cause=Cause.LR_TOO_HIGH,
    statement="the learning rate is too high for this part of training",
    signs=(slow.gradient_trend,),
)
_BIT_FLIP = Suspect(
    cause=Cause.BIT_FLIP,
    statement="a flipped bit or an overflow in the update corrupted a weight or a moment",
    signs=(precision.nonfinite_norm,),
)


def suspects(context: IncidentContext) -> tuple[Suspect, ...]:
    """The suspects, in the order of how often they are true for such an incident."""
    if context.incident.incident_class is IncidentClass.SILENT:
        return (_SCHEDULE, _DECAY, _TOO_HOT, _BIT_FLIP)
    sudden = (_LONG_TAIL, _LR_JUMP, _SAME_BATCH, _STATE_LOST)
    if precision.nonfinite_loss(context).outcome is Outcome.YES:
        return (_DESTRUCTIVE, _OVERFLOW, _LOGIC_NAN, *sudden)
    return (*sudden, _OVERFLOW)


def from_suspects(context: IncidentContext) -> list[Hypothesis]:
    """One hypothesis per suspect."""
    return [_judge(suspect, context) for suspect in suspects(context)]


def destructive_update(context: IncidentContext) -> Hypothesis | None:
    """What a NaN that stays means, whatever caused it; None if the loss is or becomes finite."""
    if precision.nonfinite_loss(context).outcome is not Outcome.YES:
        return None
    found = _judge(_DESTRUCTIVE, context)
    return found if found.standing is Standing.SUPPORTED else None


def from_walk(walked: Walk, known: Sequence[Hypothesis]) -> Hypothesis | None:
    """The hypothesis that the tree ended in, with the evidence of the suspect of the same cause.

    The tree supports it if the leaf explains the incident and its last answer was recorded. Where
    the suspect's checks rule out what the tree names, the hypothesis stays open.
    """
    leaf, last = walked.leaf, walked.answers[-1]
    if leaf.cause is None:
        return None
    standing = Standing.OPEN
    if leaf.is_explained and last.result.outcome.is_answer:
        standing = Standing.SUPPORTED
    statement = leaf.root_cause.removeprefix("Not known: ").rstrip(".")
    results = [answer.result for answer in walked.answers]
    evidence = [_evidence(result) for result in results if result.outcome is Outcome.YES]
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


def from_finding(finding: Finding) -> Hypothesis | None:
    """The hypothesis of a finding that carries its explanation."""
    explained = finding.explanation
    if explained is None:
        return None
    seen = f"{finding.symptom}: {finding.signal} {number(finding.value)} at step {finding.step}"
    return Hypothesis(
        cause=cause_of(explained.cause_id, explained.cause_title),
        statement=f"{explained.cause_title} (found by detector {finding.detector})",
        standing=Standing.SUPPORTED,
        evidence=(Evidence(signal=finding.signal, observation=seen, favors=True),),
    )


def collect(
    incident: Incident, walked: Walk, suspected: Sequence[Hypothesis], cause: AnyCause | None
) -> tuple[Hypothesis, ...]:
    """All hypotheses, each cause once: supported ones first, then open, then ruled out.

    Among equals the cause that the diagnosis names comes first.
    """
    order = list(Standing)
    found = [*map(from_finding, incident.findings), from_walk(walked, suspected), *suspected]
    first: dict[object, Hypothesis] = {}
    for item in found:
        if item is not None:
            first.setdefault(item.cause or item.statement, item)
    return tuple(
        sorted(
            first.values(),
            key=lambda item: (order.index(item.standing), cause is None or item.cause != cause),
        )
    )


def _judge(suspect: Suspect, context: IncidentContext) -> Hypothesis:
    requirements = [_evidence(check(context)) for check in suspect.requires]
    signs = [_evidence(check(context)) for check in suspect.signs]
    answers = {sign.favors for sign in signs}
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


def _evidence(result: CheckResult) -> Evidence:
    favors = result.outcome is Outcome.YES if result.outcome.is_answer else None
    return Evidence(signal=result.signal, observation=result.observation, favors=favors)
