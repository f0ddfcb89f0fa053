"""Recovery: when an incident is over, and which class it gets.

This is the part of the incident state machine in which rule sets differ. A recovery has no state:
everything that is known about an incident is in its OpenIncident.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from trimtab.core.findings import Finding
from trimtab.core.incidents import IncidentClass, Moment, Outlook
from trimtab.explain.incidents.course import Course
from trimtab.explain.incidents.open_incident import OpenIncident


class Recovery(ABC):
    """Decides for the tracker. A `class_if_...` method returns None if it does not apply.

    From `follow` to `class_if_settled` they are called at each record with a loss, in this order.
    """

    history_records: int
    """Records before an onset that the tracker remembers."""
    lead_records: int = 0
    """The onset is dated back to a warning this many records before it, or before the next one."""

    @abstractmethod
    def start(self, before: Sequence[Moment]) -> Course:
        """The course of a new incident, with these records as its baseline."""

    @abstractmethod
    def shows_in_loss(self, finding: Finding) -> bool:
        """Whether the finding is about the loss; an incident with no such finding is silent."""

    @abstractmethod
    def may_reopen(self, incident: OpenIncident, since_closed: int) -> bool:
        """Whether an alarm this many records after the end still belongs to the incident."""

    def is_echo(self, incident: OpenIncident, alarms: Sequence[Finding]) -> bool:
        """Whether the alarms only repeat what a closed incident has said."""
        return False

    def class_if_reopened(self, incident: OpenIncident) -> IncidentClass | None:
        """The class that the incident keeps when it is reopened."""
        return None

    def follow(self, incident: OpenIncident) -> None:  # noqa: B027 (not every rule set needs it)
        """Update the incident after it has seen a loss."""

    @abstractmethod
    def class_if_over(self, incident: OpenIncident, *, is_calm: bool) -> IncidentClass | None:
        """The class of an incident that is over; `is_calm` if this record raised no alarm."""

    def outlook(self, incident: OpenIncident) -> Outlook | None:
        """A forecast, at the records at which the rule set makes one."""
        return None

    @abstractmethod
    def class_if_due(self, incident: OpenIncident) -> IncidentClass | None:
        """The class of an incident that did not recover in time."""

    @abstractmethod
    def class_if_settled(self, incident: OpenIncident) -> IncidentClass | None:
        """The class of an incident that is closed although the loss did not come back."""

    @abstractmethod
    def new_normal(self, incident: OpenIncident) -> Sequence[Moment]:
        """The records that become the history when it settles; empty to keep the history."""

    def new_level(self, normal: Sequence[Moment]) -> float | None:
        """The level that is reported as the new normal, if any."""
        return None

    @abstractmethod
    def class_at_end(self, incident: OpenIncident) -> IncidentClass | None:
        """The class when the log ends; None if it is too early to say."""

    def is_out_of_losses(self, incident: OpenIncident) -> bool:
        """Whether the incident is closed because too many records had no loss."""
        return False
