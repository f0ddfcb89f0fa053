"""Conclusion: the cause of an incident, and what to do about it.

In this order: the explanation of an opening finding; what the rule set names (the leaf of a tree,
the most probable cause); where that is nothing, the explanation of a later finding. A tree falls
back on its best supported suspect.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.causes import AnyCause, Hypothesis, Standing, cause_of
from trimtab.core.findings import Explanation, Finding, Symptom
from trimtab.core.incidents import Incident
from trimtab.explain.evidence.check import Outcome, number
from trimtab.explain.tree.walk import Leaf, Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Why an incident happened, as far as is known."""

    cause: AnyCause | None
    root_cause: str
    remedy: str
    lesson: str


def conclude_from_walk(
    incident: Incident, walked: Walk, suspected: Sequence[Hypothesis]
) -> Conclusion:
    """The conclusion from the findings, the walk through the tree and the suspects."""
    leaf = walked.leaf
    explained = first_explained(opening(incident))
    if explained is None and (leaf.cause is None or not leaf.is_explained):
        explained = first_explained(incident.findings)
    if explained is not None:
        return by_finding(*explained)
    is_matched = any(answer.result.outcome is Outcome.YES for answer in walked.answers)
    if is_users_alarm(incident) and not is_matched:
        return by_users_alarm(incident)
    return _by_tree(leaf, suspected)


def opening(incident: Incident) -> Sequence[Finding]:
    """The findings at the tick that opened the incident."""
    return [f for f in incident.findings if f.tick == incident.findings[0].tick]


def first_explained(findings: Sequence[Finding]) -> tuple[Finding, Explanation] | None:
    """The first finding that carries its explanation."""
    return next(((f, f.explanation) for f in findings if f.explanation is not None), None)


def by_finding(finding: Finding, explanation: Explanation) -> Conclusion:
    """The conclusion that a finding carries."""
    return Conclusion(
        cause=cause_of(explanation.cause_id, explanation.cause_title),
        root_cause=f"{explanation.cause_title}: {finding.symptom} at step {finding.step}, found by "
        f"detector {finding.detector}.",
        remedy=explanation.remedy,
        lesson="None given by the detector.",
    )


def is_users_alarm(incident: Incident) -> bool:
    """Whether only users' detectors raised the alarm."""
    return not any(isinstance(finding.symptom, Symptom) for finding in opening(incident))


def by_users_alarm(incident: Incident) -> Conclusion:
    """The conclusion if only a user's detector raised the alarm, and no cause matches it."""
    finding = opening(incident)[0]
    seen = f"{finding.signal} {number(finding.value)} at step {finding.step}"
    return Conclusion(
        cause=None,
        root_cause=f"Not known: {finding.symptom}, found by detector {finding.detector}; no cause "
        "known.",
        remedy=f"Look at what the detector reported: {seen}.",
        lesson="A detector that knows the cause can attach an explanation to its finding.",
    )


def _by_tree(leaf: Leaf, suspected: Sequence[Hypothesis]) -> Conclusion:
    cause: AnyCause | None = leaf.cause
    root_cause = leaf.root_cause
    best = next((item for item in suspected if item.standing is Standing.SUPPORTED), None)
    if not leaf.is_explained and best is not None:
        cause = best.cause or leaf.cause
        seen = "; ".join(item.observation for item in best.evidence if item.favors)
        root_cause = f"Best supported: {best.statement} ({seen})."
    return Conclusion(cause=cause, root_cause=root_cause, remedy=leaf.remedy, lesson=leaf.lesson)
