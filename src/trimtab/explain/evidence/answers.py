"""The answers of experiments on an incident, from the events of the run."""

from collections.abc import Mapping
from typing import Any

from trimtab.core.block import Block
from trimtab.core.incidents import Incident
from trimtab.core.records.probe_events import PROBE_ANSWER

NEAR_STEPS = 16
"""A question may be about a step shortly before the onset or after the last record of an incident.
Source: the margin with which onsets are dated."""


def answers_about(incident: Incident, block: Block) -> dict[str, Mapping[str, Any]]:
    """The last answer of each experiment on an incident, by the name of the experiment."""
    first, last = incident.onset.step - NEAR_STEPS, incident.last.step + NEAR_STEPS
    found: dict[str, Mapping[str, Any]] = {}
    for event in block.events:
        about = event.facts.get("about")
        if event.kind == PROBE_ANSWER and isinstance(about, int) and first <= about <= last:
            found[str(event.facts.get("probe"))] = event.facts
    return found
