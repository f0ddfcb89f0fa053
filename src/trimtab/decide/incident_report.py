"""IncidentReport: one incident explained, with what to do about it."""

from dataclasses import dataclass

from trimtab.core.actions import Action
from trimtab.core.incidents import Incident
from trimtab.explain.batches.batch_report import BatchReport
from trimtab.explain.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentReport:
    """What an incident was, and what to do about it."""

    diagnosis: Diagnosis
    action: Action
    batch: BatchReport | None = None
    """Its sequences and tokens, if the run kept them."""

    @property
    def incident(self) -> Incident:
        """The incident that is explained."""
        return self.diagnosis.incident
