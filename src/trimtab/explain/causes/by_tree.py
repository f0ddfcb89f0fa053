"""The cause by a decision tree: one walk to one leaf."""

from trimtab.explain.causes import hypotheses
from trimtab.explain.causes.conclusion import conclude_from_walk
from trimtab.explain.context import IncidentContext
from trimtab.explain.diagnosis import Diagnosis, Explain, make_diagnosis
from trimtab.explain.tree.walk import Tree, walk


def by_tree(tree: Tree) -> Explain:
    """Explain incidents by the questions of a tree."""

    def explain(context: IncidentContext) -> Diagnosis:
        incident = context.incident
        walked = walk(context, tree)
        suspected = hypotheses.from_suspects(context)
        conclusion = conclude_from_walk(incident, walked, suspected)
        return make_diagnosis(
            context,
            conclusion,
            hypotheses.collect(incident, walked, suspected, conclusion.cause),
            incident_class=walked.leaf.incident_class,
            walk=walked,
        )

    return explain
