"""Conclusion: the cause of an incident in the words of a post-mortem.

`CONCLUSIONS` has one for each cause of the catalogue. Detectors of users can attach their own to a
finding, as an explanation.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from trimtab.core.block import Event
from trimtab.core.causes import AnyCause, Cause, Evidence, Hypothesis, Standing, cause_of
from trimtab.core.findings import Explanation, Finding, Symptom
from trimtab.core.incidents import Incident
from trimtab.core.text import digits
from trimtab.explain.evidence.checks import Answers


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Why an incident happened, as far as is known, and what to do about it."""

    cause: AnyCause | None
    root_cause: str
    """One sentence, or why the cause is not known."""
    remedy: str
    """The smallest change that fixes it."""
    lesson: str


def opening(incident: Incident) -> Sequence[Finding]:
    """Return the findings at the tick that opened the incident."""
    return [f for f in incident.findings if f.tick == incident.findings[0].tick]


def first_explained(findings: Sequence[Finding]) -> tuple[Finding, Explanation] | None:
    return next(((f, f.explanation) for f in findings if f.explanation is not None), None)


def by_finding(finding: Finding, explanation: Explanation) -> Conclusion:
    """Return the conclusion that a finding carries."""
    return Conclusion(
        cause=cause_of(explanation.cause_id, explanation.cause_title),
        root_cause=f"{explanation.cause_title}: {finding.symptom} at step {finding.step}, found by "
        f"detector {finding.detector}.",
        remedy=explanation.remedy,
        lesson="None given by the detector.",
    )


def by_proof(proof: Event) -> Conclusion:
    """Return the conclusion of an event in which harm to the state was proven."""
    why, how_sure = proof.facts.get("why"), proof.facts.get("how_sure")
    tensor = proof.facts.get("tensor") or "them"
    return Conclusion(
        cause=None,
        root_cause=f"{why} at step {proof.step}: {how_sure}. What wrote it is not recorded.",
        remedy=f"If it comes again, look for code that writes {tensor} between two updates, then "
        "for a faulty device.",
        lesson=f"Harm to the state shows in the state itself: {why}.",
    )


def hypothesis_of(finding: Finding) -> Hypothesis | None:
    """Return the hypothesis of a finding that carries its explanation."""
    explained = finding.explanation
    if explained is None:
        return None
    seen = f"{finding.symptom}: {finding.signal} {digits(finding.value)} at step {finding.step}"
    return Hypothesis(
        cause=cause_of(explained.cause_id, explained.cause_title),
        statement=f"{explained.cause_title} (found by detector {finding.detector})",
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
    seen = f"{finding.signal} {digits(finding.value)} at step {finding.step}"
    return Conclusion(
        cause=None,
        root_cause=f"Not known: {finding.symptom}, reported by {finding.detector}.",
        remedy=f"Look at {seen}.",
        lesson="A detector that knows the cause can attach an explanation to its finding.",
    )


NO_TENSOR = "which tensor is not recorded"
DESTRUCTIVE_UPDATE = (
    "a destructive update wrote NaN into a parameter, and it has stayed there since (first seen at "
    f"step {{step}}; {NO_TENSOR})"
)
"""What a loss that stays non-finite means, whatever caused it."""

_TEXTS: Mapping[str, Mapping[str, str]] = json.loads(
    resources.files(__package__).joinpath("conclusions.json").read_text(encoding="utf-8")
)

CONCLUSIONS: Mapping[AnyCause | None, Conclusion] = {
    cause: Conclusion(cause, **_TEXTS[cause.id]) for cause in Cause
}
"""By cause of the catalogue; the texts are in conclusions.json."""

_FOUND_OPERATION = _TEXTS["operation found"]


def conclusion_of(cause: Cause | None, answers: Answers) -> Conclusion:
    """Return the conclusion about a cause, with what a proof or an experiment has found."""
    said = CONCLUSIONS[cause]
    if cause is Cause.BIT_FLIP and answers["bit_flipped"].is_yes:
        proof = answers["bit_flipped"].observation
        text = f"{proof[:1].upper()}{proof[1:]}, and no code had written to it."
        return dataclasses.replace(said, root_cause=text)
    if not answers["module_nonfinite"].is_yes:
        return said
    # The sizes of values follow behind a semicolon: the hypothesis lists them.
    found = answers["module_nonfinite"].observation.partition(";")[0]
    if cause is Cause.LOGIC_NAN:
        text = _FOUND_OPERATION["root_cause"].format(found=found)
        return Conclusion(cause, **{**_FOUND_OPERATION, "root_cause": text})
    if cause is Cause.FP16_OVERFLOW:
        return dataclasses.replace(said, root_cause=f"{said.root_cause} Found: {found}.")
    return said


_WATCHED = "`trimtab.watch(model, optimizer)` records it"
_OF_BATCH = "a loop over `guard.steps(loader)` records it"

RECORDED_BY: Mapping[str, str] = {
    "grad_norm": "`guard.clip_grad_norm_(1.0)` records it",
    "loss_scale": "log `scaler.get_scale()`",
    "dtype": '`trimtab.watch(..., facts={"dtype": "bf16"})` states it',
    "fingerprint": _OF_BATCH,
    "token_rarity": _OF_BATCH,
    "unique_token_share": _OF_BATCH,
    "tokens": "`guard.record(loss=loss, tokens=count)` records it",
}
"""By signal: the line that records it, where `trimtab.watch` alone does not."""


def how_to_record(signal: str) -> str:
    return RECORDED_BY.get(signal, _WATCHED)


NOTHING_FITS = Conclusion(None, **_TEXTS["nothing fits"])

USEFUL = {
    "grad_norm": "the gradient norm",
    "lr": "the learning rate",
    "param_norm by group": "weight norms",
    "fingerprint": "batch fingerprints",
}
"""What to record where nothing speaks for a cause, by signal."""

BATCH_NOT_FINITE = Conclusion(None, **_TEXTS["batch not finite"])
"""What an experiment has shown; the catalogue has no such cause."""

BY_SYMPTOM: Mapping[str, Conclusion] = {
    symptom: Conclusion(None, **_TEXTS[symptom])
    for symptom in (Symptom.MISSING_LOSS, Symptom.SLOW, Symptom.REFERENCE_GAP, Symptom.NO_LEARNING)
}
"""Where nothing known fits, but a finding says what happened."""
