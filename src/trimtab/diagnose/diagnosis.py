"""Diagnosis: everything that can be said about one incident."""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.core.causes import Cause, Hypothesis, Standing
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.diagnose.causes import hypotheses
from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.measures.cost import Cost, reckon
from trimtab.diagnose.measures.layers import LayerNorms, layer_norms
from trimtab.diagnose.measures.symptoms import Symptoms, measure
from trimtab.diagnose.tree.textbook import QUESTIONS, Question, Walk, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One incident, explained as far as the records allow."""

    incident: Incident
    incident_class: IncidentClass | None
    """The last word on the class; None if the log ends too early to say."""
    symptoms: Symptoms
    layers: tuple[LayerNorms, ...]
    walk: Walk
    hypotheses: tuple[Hypothesis, ...]
    cause: Cause | None
    root_cause: str
    remedy: str
    lesson: str
    cost: Cost


def diagnose(case: IncidentContext, questions: Mapping[str, Question] = QUESTIONS) -> Diagnosis:
    """Explain one incident, by the textbook's questions or others."""
    walked = walk(case, questions)
    ranked = hypotheses.rank(case)
    leaf = walked.leaf
    cause, root_cause = leaf.cause, leaf.root_cause
    best = ranked[0] if ranked else None
    if not leaf.is_explained and best and best.standing is Standing.SUPPORTED:
        cause = best.cause or leaf.cause
        seen = "; ".join(item.observation for item in best.evidence if item.favors)
        root_cause = f"Best supported: {best.statement} ({seen})."
    return Diagnosis(
        incident=case.incident,
        incident_class=leaf.incident_class or case.incident.incident_class,
        symptoms=measure(case),
        layers=layer_norms(case),
        walk=walked,
        hypotheses=ranked,
        cause=cause,
        root_cause=root_cause,
        remedy=leaf.remedy,
        lesson=leaf.lesson,
        cost=reckon(case),
    )
