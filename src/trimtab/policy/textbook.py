"""The textbook's response to each class of incident."""

from trimtab.core.actions import Action, ActionKind
from trimtab.core.incidents import IncidentClass
from trimtab.diagnose.diagnosis import Diagnosis


def advise(diagnosis: Diagnosis, *, recurs: bool) -> Action:
    """What to do about an incident; `recurs` if it came at the same place before a restart."""
    if recurs:
        return Action(
            kind=ActionKind.LOWER_LR,
            instruction="Lower the learning rate by 2 to 3 times and run on from a checkpoint "
            f"older than step {diagnosis.incident.onset.step}.",
            reason="It came back at the same place after a restart.",
        )
    return _by_class(diagnosis)


def _by_class(diagnosis: Diagnosis) -> Action:
    onset = diagnosis.incident.onset.step
    match diagnosis.incident_class:
        case IncidentClass.RECOVERABLE | IncidentClass.HARD_BATCH:
            return Action(
                kind=ActionKind.WAIT,
                instruction="Go on, and look again 200 steps later.",
                reason="The loss came back by itself.",
            )
        case IncidentClass.LINGERING | IncidentClass.DIVERGENT:
            return Action(
                kind=ActionKind.ROLL_BACK,
                instruction=f"Roll back to a checkpoint older than step {onset} and skip 5 to 20 "
                "batches from there.",
                reason="The optimizer's state holds what happened; skipping alone does not help.",
            )
        case IncidentClass.SILENT:
            return Action(
                kind=ActionKind.ROLL_BACK,
                instruction=f"Apply the remedy and run on from a checkpoint older than step "
                f"{onset}.",
                reason="What drives it goes on until it is mended.",
            )
        case IncidentClass.PLATEAU:
            return Action(
                kind=ActionKind.STOP,
                instruction="Stop the run if the evaluation loss is flat too.",
                reason="Nothing more is being learnt.",
            )
        case None:
            return Action(
                kind=ActionKind.WAIT,
                instruction="Look again when 50 more records are there.",
                reason="It is too early to say.",
            )
