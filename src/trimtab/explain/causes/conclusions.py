"""Conclusion: the cause of an incident in the words of a post-mortem.

For the causes of the catalogue `statements` has the words. Detectors of users can attach their own
to a finding, as an explanation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.core.block import Event
from trimtab.core.causes import AnyCause, Evidence, Hypothesis, Standing, cause_of
from trimtab.core.findings import Explanation, Finding, Symptom
from trimtab.core.incidents import Incident
from trimtab.core.signals import EVAL_REWARD, GRAD_NORM, KL, LR, RESPONSE_LENGTH
from trimtab.core.text import digits


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Why an incident happened, as far as is known, and what to do about it."""

    cause: AnyCause | None
    root_cause: str
    """One sentence, or why the cause is not known."""
    remedy: str
    """The smallest change that fixes it."""
    lesson: str
    other_cause: str = ""
    """The cause in a few words, where it is known and none of the catalogue."""


def opening(incident: Incident) -> Sequence[Finding]:
    """Return the findings at the tick that opened the incident."""
    return [f for f in incident.findings if f.tick == incident.findings[0].tick]


def first_explained(findings: Sequence[Finding]) -> tuple[Finding, Explanation] | None:
    return next(((f, f.explanation) for f in findings if f.explanation is not None), None)


def by_finding(finding: Finding, explanation: Explanation) -> Conclusion:
    """Return the conclusion that a finding carries."""
    title = f"{explanation.cause_title[:1].upper()}{explanation.cause_title[1:]}"
    return Conclusion(
        cause=cause_of(explanation.cause_id, explanation.cause_title),
        root_cause=f"{title}: {finding.symptom} at step {finding.step:,}{_found_by(finding)}.",
        remedy=explanation.remedy,
        lesson="None given by the detector.",
    )


def _found_by(finding: Finding) -> str:
    """Return what a finding is known by: the detector of a user by name, ours by their numbers."""
    if not isinstance(finding.symptom, Symptom):
        return f", found by detector {finding.detector}"
    if finding.expected is None:
        return ""
    return f" ({finding.signal} {digits(finding.expected)} -> {digits(finding.value)})"


def by_proof(proof: Event) -> Conclusion:
    """Return the conclusion of an event in which harm to the state was proven."""
    why, how_sure = proof.facts.get("why"), proof.facts.get("how_sure")
    tensor = proof.facts.get("tensor") or "them"
    root_cause = f"{why} at step {proof.step}: {how_sure}. What wrote it is not recorded."
    if proof.facts.get("is_too_far"):
        changed = proof.facts.get("tensor") or "several tensors"
        root_cause = (
            f"Something other than the optimizer changed {changed} before step {proof.step} "
            "(certain): it moved further than the updates since the snapshot can. What wrote it is "
            "unknown."
        )
    return Conclusion(
        cause=None,
        root_cause=root_cause,
        remedy=f"If it comes again, look for code that writes {tensor} between two updates, then "
        "for a faulty device.",
        lesson=f"Harm to the state shows in the state itself: {why}.",
        other_cause=str(why),
    )


def by_cure(undo: Event, step: int) -> Conclusion:
    """Return the conclusion of an undo that has ended a row of steps that were not finite."""
    restored = undo.facts.get("to_step")
    return Conclusion(
        cause=None,
        root_cause=f"About 90 %: a weight or a moment was corrupted at about step {step:,}: "
        f"restoring the state of step {restored} cured it, while the batches went on. What wrote "
        "it is not recorded.",
        remedy="If it comes again, look for code that writes weights or moments between two "
        "updates, then for a faulty device.",
        lesson=f"What an older state cures at step {undo.step:,} is not in the batch.",
        other_cause="weights or moments corrupted",
    )


def by_change(change: str, incident: Incident) -> Conclusion:
    """Return the conclusion of a setting that changed as an incident began."""
    step = incident.onset.step
    return Conclusion(
        cause=None,
        root_cause=f"Probably the change: {change}.",
        remedy="None if the change was meant; compare an evaluation with one from before step "
        f"{step:,}.",
        lesson=f"The loss shows a change of the run itself at step {step:,}: {change}.",
        other_cause=f"probably the change: {change}",
    )


def hypothesis_of(finding: Finding) -> Hypothesis | None:
    """Return the hypothesis of a finding that carries its explanation."""
    explained = finding.explanation
    if explained is None:
        return None
    seen = f"{finding.symptom}: {finding.signal} {digits(finding.value)} at step {finding.step}"
    return Hypothesis(
        cause=cause_of(explained.cause_id, explained.cause_title),
        statement=f"{finding.symptom}{_found_by(finding)}",
        standing=Standing.SUPPORTED,
        evidence=(Evidence(signal=finding.signal, observation=seen, favors=True),),
    )


def each_cause_once(found: Iterable[Hypothesis | None]) -> Iterable[Hypothesis]:
    """Return the first hypothesis for each cause; those without a cause by their statement."""
    first: dict[object, Hypothesis] = {}
    for item in found:
        if item is not None:
            first.setdefault(item.cause or item.statement, item)
    return first.values()


def is_users_alarm(incident: Incident) -> bool:
    return not any(isinstance(finding.symptom, Symptom) for finding in opening(incident))


def by_users_alarm(incident: Incident) -> Conclusion:
    """Return the conclusion if only a user's detector raised the alarm, and no cause matches it."""
    finding = opening(incident)[0]
    seen = f"{finding.signal} is {digits(finding.value)} at step {finding.step:,}"
    return Conclusion(
        cause=None,
        root_cause=f"Not known: {finding.symptom}, reported by {finding.detector}.",
        remedy=f"Find out why {seen}.",
        lesson="A detector that knows the cause can attach an explanation to its finding.",
    )


NO_TENSOR = "which tensor is not recorded"
DESTRUCTIVE_UPDATE = (
    "a destructive update wrote NaN into a parameter, and it has stayed there since (first seen at "
    f"step {{step}}; {NO_TENSOR})"
)
"""What a loss that stays non-finite means, whatever caused it."""

_WATCHED = "`trimtab.watch(model, optimizer)` records"
_OF_BATCH = "`guard.record(loss=loss, batch=batch)`, with the batch on the host, records"

OF_LOOP = (GRAD_NORM, LR)
"""What to record first of a training loop where nothing speaks for a cause."""
OF_POLICY = (EVAL_REWARD, KL, RESPONSE_LENGTH)
"""The same of a policy."""

RECORDED_BY: Mapping[str, str] = {
    "grad_norm": "`guard.clip_grad_norm_(1.0)` records",
    **{name: f"`guard.record(loss=loss, {name}={name})` records" for name in OF_POLICY},
    "loss_scale": "log `scaler.get_scale()` as",
    "dtype": '`trimtab.watch(..., facts={"dtype": "bf16"})`, or `--set dtype=bf16` for this log, '
    "states",
    "fingerprint": _OF_BATCH,
    "token_rarity": _OF_BATCH,
    "unique_token_share": _OF_BATCH,
    "tokens": "`guard.record(loss=loss, tokens=count)` records",
}
"""By signal: the line that records it, before its name, where `trimtab.watch` alone does not."""


def how_to_record(signal: str) -> str:
    return RECORDED_BY.get(signal, _WATCHED)
