"""What trimtab itself advises, where that differs from the textbook."""

from trimtab.core.actions import Action, ActionKind
from trimtab.core.findings import HARMLESS, Symptom
from trimtab.core.incidents import IncidentClass, Outlook
from trimtab.diagnose.diagnosis import Diagnosis
from trimtab.policy import textbook

SURE = 0.8
"""An outlook this certain is worth acting on; under it waiting costs less than a wrong rollback."""

PASSING = frozenset(
    {Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE, Symptom.NONFINITE_GRAD_NORM, Symptom.OVERFLOWS}
)
"""What may happen at one step and be over with it."""


def advise(diagnosis: Diagnosis, *, recurs: bool) -> Action:
    """What to do about an incident; `recurs` if it came at the same place before a restart."""
    onset = diagnosis.incident.onset.step
    if HARMLESS.issuperset(diagnosis.incident.symptoms):
        return Action(
            kind=ActionKind.WAIT,
            instruction="Go on, and apply the remedy at the next restart.",
            reason="The weights are not touched; only time is lost.",
        )
    if recurs:
        return textbook.advise(diagnosis, recurs=True)
    match diagnosis.incident_class:
        case IncidentClass.HARD_BATCH:
            return Action(
                kind=ActionKind.WAIT,
                instruction="Go on; nothing is to be done.",
                reason="One batch was hard and the next ones were not.",
            )
        case IncidentClass.RECOVERABLE | IncidentClass.PLATEAU:
            return textbook.advise(diagnosis, recurs=False)
        case IncidentClass.LINGERING:
            return _after_lingering(diagnosis)
        case IncidentClass.DIVERGENT:
            return Action(
                kind=ActionKind.ROLL_BACK,
                instruction=f"Roll back to a checkpoint older than step {onset} and skip 5 to 20 "
                "batches from there.",
                reason="The weights are lost; what is done after the onset is done in vain.",
            )
        case IncidentClass.SILENT:
            return _after_silence(diagnosis)
        case None:
            return _while_open(onset, diagnosis.incident.outlook)


def _after_silence(diagnosis: Diagnosis) -> Action:
    incident = diagnosis.incident
    if incident.end is not None and PASSING.issuperset(incident.symptoms):
        return Action(
            kind=ActionKind.WAIT,
            instruction="Go on, and look again 200 steps later.",
            reason="It passed, and the loss did not follow.",
        )
    return Action(
        kind=ActionKind.ROLL_BACK,
        instruction=f"Apply the remedy and run on from a checkpoint older than step "
        f"{incident.onset.step}.",
        reason="What drives it goes on until it is mended.",
    )


def _after_lingering(diagnosis: Diagnosis) -> Action:
    incident = diagnosis.incident
    if incident.end is not None and incident.new_level is None:
        return Action(
            kind=ActionKind.WAIT,
            instruction="Go on, and compare the evaluation loss with the one before.",
            reason=f"The loss took {incident.records} records, but it came back.",
        )
    return Action(
        kind=ActionKind.ROLL_BACK,
        instruction=f"Roll back to a checkpoint older than step {incident.onset.step} and skip 5 "
        "to 20 batches from there, unless the data was changed on purpose.",
        reason="The loss has stayed on its higher level.",
    )


def _while_open(onset: int, outlook: Outlook | None) -> Action:
    """Nothing is certain yet: the outlook decides whether a rollback should be made ready."""
    if outlook is None:
        return Action(
            kind=ActionKind.WAIT,
            instruction="Look again when there are more records.",
            reason="It is too early to say.",
        )
    told = f"{outlook.incident_class}, {100 * outlook.certainty:.0f} % certain"
    if outlook.incident_class is not IncidentClass.RECOVERABLE and outlook.certainty >= SURE:
        return Action(
            kind=ActionKind.ROLL_BACK,
            instruction=f"Make a checkpoint older than step {onset} ready; roll back if the loss "
            "is not back in 100 steps.",
            reason=f"Foreseen: {told}.",
        )
    return Action(
        kind=ActionKind.WAIT, instruction="Wait for the next look.", reason=f"Foreseen: {told}."
    )
