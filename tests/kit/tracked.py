"""Incidents of a run by the tracker alone, with alarms that a test plants."""

import json
from collections.abc import Sequence

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Transition
from trimtab.explain.incidents.rules import IncidentRules
from trimtab.explain.incidents.tracker import IncidentTracker


def alarm(
    row: int,
    symptom: str = Symptom.LOSS_SPIKE,
    severity: Severity = Severity.ALARM,
    onset: int | None = None,
    step: int | None = None,
) -> Finding:
    """An alarm at the record with this tick, which is its step if none is given."""
    return Finding(
        detector="test",
        symptom=symptom,
        severity=severity,
        signal="loss",
        step=row if step is None else step,
        tick=row,
        value=1.0,
        onset_tick=onset,
    )


def tracked(run: Block, *alarms: Finding) -> tuple[list[Incident], list[IncidentChange]]:
    """Every incident of a run as it stands at its end, and what changed about them."""
    tracker = IncidentTracker(IncidentRules())
    changes = [*tracker.update(run, alarms), *tracker.finish()]
    return standing(tracker, changes), changes


def tracked_in_pieces(
    pieces: Sequence[Block], *alarms: Finding, saved: bool = False
) -> tuple[list[Incident], list[IncidentChange]]:
    """The same for a run that comes in pieces; `saved`: a new tracker goes on at each of them."""
    tracker, changes = IncidentTracker(IncidentRules()), list[IncidentChange]()
    for piece in pieces:
        if saved:
            state = json.loads(json.dumps(tracker.state_dict()))
            tracker = IncidentTracker(IncidentRules())
            tracker.load_state_dict(state)
        ticks = set(piece.tick.tolist())
        changes += tracker.update(piece, [one for one in alarms if one.tick in ticks])
    changes += tracker.finish()
    return standing(tracker, changes), changes


def standing(tracker: IncidentTracker, changes: Sequence[IncidentChange]) -> list[Incident]:
    """The incidents as they stand after these changes."""
    last = {change.incident.number: change.incident for change in changes}
    last |= {incident.number: incident for incident in tracker.open_incidents}
    return [last[number] for number in sorted(last)]


def transitions(changes: Sequence[IncidentChange]) -> list[Transition]:
    return [change.transition for change in changes]


def classes(changes: Sequence[IncidentChange]) -> list[IncidentClass]:
    """The classes that were said, one after the other."""
    said = [change.incident.incident_class for change in changes]
    return [one for at, one in enumerate(said) if at == 0 or one is not said[at - 1]]
