"""Diagnosis: everything that can be said about one incident."""

from dataclasses import dataclass

from trimtab.core.causes import AnyCause, Hypothesis
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.diagnose.causes import hypotheses
from trimtab.diagnose.causes.conclusion import conclude
from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.measures.cost import Cost, compute_cost
from trimtab.diagnose.measures.layers import LayerNorms, layer_norms
from trimtab.diagnose.measures.symptoms import Symptoms, measure
from trimtab.diagnose.tree.walk import Tree, Walk, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One incident, explained as far as the records allow."""

    incident: Incident
    incident_class: IncidentClass | None
    """The final class; None if the log ends too early to say."""
    symptoms: Symptoms
    layers: tuple[LayerNorms, ...]
    walk: Walk
    hypotheses: tuple[Hypothesis, ...]
    """The cause is among them, and first if it is supported."""
    cause: AnyCause | None
    root_cause: str
    remedy: str
    lesson: str
    cost: Cost


def diagnose(context: IncidentContext, tree: Tree) -> Diagnosis:
    """Explain one incident by the questions of a tree."""
    incident = context.incident
    walked = walk(context, tree)
    suspected = hypotheses.from_suspects(context)
    conclusion = conclude(incident, walked, suspected)
    return Diagnosis(
        incident=incident,
        incident_class=walked.leaf.incident_class or incident.incident_class,
        symptoms=measure(context),
        layers=layer_norms(context),
        walk=walked,
        hypotheses=hypotheses.collect(incident, walked, suspected, conclusion.cause),
        cause=conclusion.cause,
        root_cause=conclusion.root_cause,
        remedy=conclusion.remedy,
        lesson=conclusion.lesson,
        cost=compute_cost(context),
    )
