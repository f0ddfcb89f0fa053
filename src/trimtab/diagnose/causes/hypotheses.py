"""Hypotheses: possible causes of an incident, each held against the panels that could tell."""

from dataclasses import dataclass

from trimtab.core.causes import Cause, Evidence, Hypothesis, Standing
from trimtab.core.incidents import IncidentClass
from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.evidence import precision, slow, spike
from trimtab.diagnose.evidence.reading import Panel, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A possible cause and the panels that can tell."""

    cause: Cause | None
    statement: str
    signs: tuple[Panel, ...]
    """One yes supports it; if all that are recorded say no, it is ruled out."""
    requires: tuple[Panel, ...] = ()
    """One no rules it out, whatever the signs say."""


_DESTRUCTIVE = Suspect(
    cause=None,
    statement="a destructive update wrote NaN into a parameter, and it has stayed there since",
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


def suspects(case: IncidentContext) -> tuple[Suspect, ...]:
    """Whom to suspect, in the order of what is most often true for such an incident."""
    if case.incident.incident_class is IncidentClass.SILENT:
        return (_SCHEDULE, _DECAY, _TOO_HOT, _BIT_FLIP)
    sudden = (_LONG_TAIL, _LR_JUMP, _SAME_BATCH, _STATE_LOST)
    if precision.nonfinite_loss(case).verdict is Verdict.YES:
        return (_DESTRUCTIVE, _OVERFLOW, _LOGIC_NAN, *sudden)
    return (*sudden, _OVERFLOW)


def rank(case: IncidentContext) -> tuple[Hypothesis, ...]:
    """The hypotheses about an incident: supported ones first, then open, then ruled out."""
    order = list(Standing)
    judged = [_judge(suspect, case) for suspect in suspects(case)]
    return tuple(sorted(judged, key=lambda hypothesis: order.index(hypothesis.standing)))


def _judge(suspect: Suspect, case: IncidentContext) -> Hypothesis:
    requirements = [_evidence(panel, case) for panel in suspect.requires]
    signs = [_evidence(panel, case) for panel in suspect.signs]
    told = {sign.favors for sign in signs}
    if any(item.favors is False for item in requirements):
        standing = Standing.RULED_OUT
    elif True in told:
        standing = Standing.SUPPORTED
    elif False in told:
        standing = Standing.RULED_OUT
    else:
        standing = Standing.OPEN
    return Hypothesis(
        cause=suspect.cause,
        statement=suspect.statement,
        standing=standing,
        evidence=(*requirements, *signs),
    )


def _evidence(panel: Panel, case: IncidentContext) -> Evidence:
    reading = panel(case)
    favors = None if reading.verdict is Verdict.NOT_RECORDED else reading.verdict is Verdict.YES
    return Evidence(panel=reading.signal, observation=reading.observation, favors=favors)
