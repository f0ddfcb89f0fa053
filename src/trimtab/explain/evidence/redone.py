"""Whether the steps of an incident went well when the run did them again.

A rollback that changes nothing is an experiment: the same batches, settings and random numbers from
the same state. What does not come back came from outside of them.
"""

from collections.abc import Iterable

from trimtab.core.block import Block
from trimtab.core.findings import HARMLESS
from trimtab.core.incidents import Incident
from trimtab.core.records.rollbacks import ROLLBACK

REDONE_STEPS = 16
"""Steps after an incident that must have been done again as well. Chosen: twice the steps by which
an onset may be dated too late."""

_CHANGES = ("skip", "hold", "source", "lr_factor")
"""Facts of a rollback that changes something."""


def went_well_again(incident: Incident, incidents: Iterable[Incident], run: Block) -> bool | None:
    """Whether nothing came back; None if something was changed, or it is too early to say."""
    later = [e for e in run.events if e.kind == ROLLBACK and e.tick > incident.last.tick]
    if not incident.rolled_back or not later or any(later[0].facts.get(name) for name in _CHANGES):
        return None
    until = incident.last.step + REDONE_STEPS
    first, end = later[0].tick, later[1].tick if len(later) > 1 else None
    for other in incidents:
        is_same_place = other.onset.tick >= first and other.onset.step <= until
        if is_same_place and not HARMLESS.issuperset(other.symptoms):
            return False
    rows = slice(run.row_of(first), None if end is None else run.row_of(end))
    return True if (run.step[rows] >= until).any() else None
