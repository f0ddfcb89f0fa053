"""Explained: why an incident happened, as a rule set sees it."""

from dataclasses import dataclass
from typing import Protocol

from trimtab.core.causes import Hypothesis
from trimtab.core.incidents import IncidentClass
from trimtab.explain.causes.conclusion import Conclusion
from trimtab.explain.causes.ranking import Ranking
from trimtab.explain.context import IncidentContext
from trimtab.explain.tree.walk import Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The conclusion about an incident, and how it was reached."""

    conclusion: Conclusion
    hypotheses: tuple[Hypothesis, ...]
    """The cause is among them."""
    incident_class: IncidentClass | None
    """The class, where the explanation knows it better than the state machine."""
    walk: Walk | None = None
    """The questions of a tree, if one was walked."""
    ranking: Ranking | None = None
    """The causes by evidence, if they were ranked."""


class Explain(Protocol):
    """Finds the cause of an incident."""

    def __call__(self, context: IncidentContext) -> Explained:
        """Explain one incident."""
        ...
