"""Conclusion: the cause of an incident, and what to do about it.

In this order: the explanation of an opening finding; the leaf of the tree; where the leaf explains
nothing, the best supported suspect or the explanation of a later finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.causes import AnyCause, Hypothesis, Standing, cause_of
from trimtab.core.findings import Explanation, Finding, Symptom
from trimtab.core.incidents import Incident
from trimtab.diagnose.evidence.check import Outcome, number
from trimtab.diagnose.tree.walk import Leaf, Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Why an incident happened, as far as is known."""

    cause: AnyCause | None
    root_cause: str
    remedy: str
    lesson: str


def conclude(incident: Incident, walked: Walk, suspected: Sequence[Hypothesis]) -> Conclusion:
    """The conclusion from the findings, the walk through the tree and the suspects."""
    leaf = walked.leaf
    opening = [f for f in incident.findings if f.tick == incident.findings[0].tick]
    explained = _first_explained(opening)
    if explained is None and (leaf.cause is None or not leaf.is_explained):
        explained = _first_explained(incident.findings)
    if explained is not None:
        return _by_finding(*explained)
    if _is_only_users(opening, walked):
        return _by_no_cause(opening[0])
    return _by_tree(leaf, suspected)


def _first_explained(findings: Sequence[Finding]) -> tuple[Finding, Explanation] | None:
    return next(((f, f.explanation) for f in findings if f.explanation is not None), None)


def _by_finding(finding: Finding, explanation: Explanation) -> Conclusion:
    return Conclusion(
        cause=cause_of(explanation.cause_id, explanation.cause_title),
        root_cause=f"{explanation.cause_title}: {finding.symptom} at step {finding.step}, found by "
        f"detector {finding.detector}.",
        remedy=explanation.remedy,
        lesson="None given by the detector.",
    )


def _is_only_users(opening: Sequence[Finding], walked: Walk) -> bool:
    """Whether only users' detectors raised the alarm, and no question of the tree matches it."""
    is_users = not any(isinstance(finding.symptom, Symptom) for finding in opening)
    is_matched = any(answer.result.outcome is Outcome.YES for answer in walked.answers)
    return is_users and not is_matched


def _by_no_cause(finding: Finding) -> Conclusion:
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
