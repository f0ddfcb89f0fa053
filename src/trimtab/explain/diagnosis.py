"""Diagnosis: everything that can be said about one incident."""

from dataclasses import dataclass

from trimtab.core.causes import AnyCause, Hypothesis
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.explain.causes.explained import Explain
from trimtab.explain.causes.ranking import Ranking
from trimtab.explain.context import IncidentContext
from trimtab.explain.measures.cost import Cost, compute_cost
from trimtab.explain.measures.layers import LayerNorms, layer_norms
from trimtab.explain.measures.repeats import RepeatedBatch, repeated_batch
from trimtab.explain.measures.symptoms import Symptoms, measure
from trimtab.explain.tree.walk import Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One incident, explained as far as the records allow."""

    incident: Incident
    incident_class: IncidentClass | None
    """The final class; None if the log ends too early to say."""
    symptoms: Symptoms
    layers: tuple[LayerNorms, ...]
    repeated_batch: RepeatedBatch | None
    """The batch that was served several times, if one was."""
    walk: Walk | None
    """The questions of a decision tree; None if the rules weigh evidence."""
    ranking: Ranking | None
    """The causes by evidence; None if the rules walk a tree."""
    hypotheses: tuple[Hypothesis, ...]
    """The cause is among them, and first if it is supported."""
    cause: AnyCause | None
    root_cause: str
    remedy: str
    lesson: str
    cost: Cost

    @property
    def outcome(self) -> str:
        """The class; if there is none, whether the run was rolled back or the incident is open."""
        if self.incident_class is not None:
            return self.incident_class.value
        return "rolled back" if self.incident.rolled_back else "open"


def diagnose(context: IncidentContext, explain: Explain) -> Diagnosis:
    """Explain one incident the way that a rule set does."""
    incident = context.incident
    explained = explain(context)
    conclusion = explained.conclusion
    return Diagnosis(
        incident=incident,
        incident_class=explained.incident_class or incident.incident_class,
        symptoms=measure(context),
        layers=layer_norms(context),
        repeated_batch=repeated_batch(context),
        walk=explained.walk,
        ranking=explained.ranking,
        hypotheses=explained.hypotheses,
        cause=conclusion.cause,
        root_cause=conclusion.root_cause,
        remedy=conclusion.remedy,
        lesson=conclusion.lesson,
        cost=compute_cost(context),
    )
