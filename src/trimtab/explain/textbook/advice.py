"""The textbook's advice: one action per class of incident."""

from trimtab.core.actions import Action, ActionKind
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.verdict.instruction import LEARNT

FIRST_CHECKPOINT = 200
"""Steps within which a run that has not learnt anything has no checkpoint to go back to. Source:
the stability guides save one every 200 steps."""


def advise_by_textbook(diagnosis: Diagnosis, *, recurs: bool) -> Action:
    """Return the textbook's action; `recurs`: it was at the same place before a restart."""
    before = _before(diagnosis.incident)
    if recurs:
        return Action(
            kind=ActionKind.LOWER_LR,
            instruction="Lower the learning rate by a factor of 2 to 3 and continue from "
            f"{before}.",
            reason="It came back at the same place after a restart.",
        )
    match diagnosis.incident_class:
        case IncidentClass.RECOVERED:
            return Action(
                kind=ActionKind.WAIT,
                instruction="Continue, and look again 200 steps later.",
                reason="The loss came back by itself.",
            )
        case IncidentClass.LINGERING | IncidentClass.DIVERGENT:
            return Action(
                kind=ActionKind.ROLL_BACK,
                instruction=f"Roll back to {before} and skip 5 to 20 batches from there.",
                reason="The optimizer's state holds what happened; skipping alone does not help.",
            )
        case IncidentClass.SILENT:
            again = "start again" if _is_young(diagnosis.incident) else "continue"
            return Action(
                kind=ActionKind.ROLL_BACK,
                instruction=f"Apply the fix and {again} from {before}.",
                reason="The cause remains until it is fixed.",
            )
        case IncidentClass.PLATEAU:
            return Action(
                kind=ActionKind.STOP,
                instruction="Stop the run if the evaluation loss is flat too.",
                reason="The model no longer learns.",
            )
    return Action(
        kind=ActionKind.WAIT,
        instruction="Look again after 50 more records.",
        reason="It is too early to say.",
    )


def _before(incident: Incident) -> str:
    """Return the state that the incident has not touched."""
    step = incident.onset.step
    return (
        "the initial weights" if _is_young(incident) else f"a checkpoint older than step {step:,}"
    )


def _is_young(incident: Incident) -> bool:
    level, start = incident.facts.level, incident.facts.start_loss
    has_learnt = level is not None and start is not None and level.before < start * LEARNT
    return 0 <= incident.onset.step <= FIRST_CHECKPOINT and not has_learnt
