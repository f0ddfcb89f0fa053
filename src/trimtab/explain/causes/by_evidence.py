"""The cause by evidence: every observation weighed for every cause.

context --> observations --> rank --> hypotheses, conclusion
            (yes, no,        (weights fitted in the lab)
             not recorded)
"""

from collections.abc import Collection, Iterable

from trimtab.core.causes import Cause, Evidence, Hypothesis, Standing
from trimtab.core.findings import Symptom
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.explain.causes.conclusion import (
    Conclusion,
    by_finding,
    by_users_alarm,
    first_explained,
    is_users_alarm,
    opening,
)
from trimtab.explain.causes.experiments import experiment_weights
from trimtab.explain.causes.hypotheses import destructive_update, from_finding
from trimtab.explain.causes.ranking import Candidate, Ranking, rank
from trimtab.explain.causes.texts import (
    BY_SYMPTOM,
    KNOWN_OPERATION,
    NOTHING_FITS,
    TEXTS,
    CauseText,
)
from trimtab.explain.context import IncidentContext
from trimtab.explain.diagnosis import Diagnosis, make_diagnosis
from trimtab.explain.evidence.check import Outcome
from trimtab.explain.evidence.observations import ALL_OBSERVATIONS

SURE, SUPPORTED, OPEN = 0.9, 0.5, 0.05
"""Probabilities from which on a hypothesis outranks the explanation of a later finding, counts as
supported, and counts as open."""

MIN_PROBABILITY = 0.01
MAX_HYPOTHESES = 5
MAX_EVIDENCE = 5
"""Less probable causes, except the first two, and lighter evidence are not listed."""


TIME_SYMPTOMS = frozenset({Symptom.STALL, Symptom.SLOW})
TIME_CAUSES = frozenset({Cause.LOADER_STALL, Cause.SLOW_RANK})
"""What slow steps look like, and the causes that have them as their only symptom."""

RANK_CAUSES = frozenset({Cause.REPLICAS_OUT_OF_SYNC, Cause.SLOW_RANK})
"""What one rank cannot have."""

LASTING_CAUSES = frozenset({Cause.LOSS_REDUCTION_BUG})
"""What a loss does not come back from by itself: a factor in the code stays."""


def explain_by_evidence(context: IncidentContext) -> Diagnosis:
    """Explain one incident by all observations that its records allow."""
    incident = context.incident
    results = {id: look(context) for id, look in ALL_OBSERVATIONS.items()}
    is_alone = results["several_ranks"].outcome is Outcome.NO
    possible = possible_causes(incident.symptoms, is_alone=is_alone)
    if _came_back(incident):
        possible = frozenset(possible) - LASTING_CAUSES
    ranking = rank(results, experiment_weights(), possible)
    conclusion = _conclude(incident, ranking)
    given = (from_finding(finding) for finding in incident.findings)
    ranked = [_hypothesis(candidate, ranking) for candidate in _listed(ranking)]
    is_flat = set(incident.symptoms) == {Symptom.NO_LEARNING}
    return make_diagnosis(
        context,
        conclusion,
        _once((*given, destructive_update(context), *ranked)),
        incident_class=IncidentClass.PLATEAU if is_flat else None,
        ranking=ranking,
    )


def possible_causes(symptoms: Collection[str], *, is_alone: bool) -> Collection[Cause]:
    """The causes that an incident with these symptoms can have.

    Where only time is lost, what the data or the weights look like by chance explains nothing. A
    run of one rank has no other to differ from.
    """
    is_of_time = symptoms and TIME_SYMPTOMS.issuperset(symptoms)
    causes = TIME_CAUSES if is_of_time else frozenset(Cause)
    return causes - RANK_CAUSES if is_alone else causes


def _came_back(incident: Incident) -> bool:
    """Whether the loss rose and is where it was before."""
    has_risen = incident.incident_class in (IncidentClass.RECOVERABLE, IncidentClass.LINGERING)
    return has_risen and incident.end is not None and incident.new_level is None


def _listed(ranking: Ranking) -> Iterable[Candidate]:
    for place, candidate in enumerate(ranking.candidates[:MAX_HYPOTHESES]):
        if place < 2 or candidate.probability >= MIN_PROBABILITY:
            yield candidate


def _conclude(incident: Incident, ranking: Ranking) -> Conclusion:
    """The explanation of a finding outranks the evidence if it opened the incident.

    A later one does so unless the evidence is sure of a cause.
    """
    explained = first_explained(opening(incident))
    first = ranking.first
    is_sure = first.cause is not None and first.probability >= SURE
    if explained is None and not is_sure:
        explained = first_explained(incident.findings)
    if explained is not None:
        return by_finding(*explained)
    if is_users_alarm(incident) and first.cause is None:
        return by_users_alarm(incident)
    text = _text(incident, ranking)
    return Conclusion(
        cause=first.cause,
        root_cause=text.root_cause + _doubt(ranking),
        remedy=text.remedy,
        lesson=text.lesson,
    )


def _text(incident: Incident, ranking: Ranking) -> CauseText:
    cause = ranking.first.cause
    if cause is Cause.LOGIC_NAN and _is_seen(ranking, "operation_not_finite"):
        return KNOWN_OPERATION
    if cause is not None:
        return TEXTS[cause]
    return next((BY_SYMPTOM[s] for s in incident.symptoms if s in BY_SYMPTOM), NOTHING_FITS)


def _is_seen(ranking: Ranking, observation: str) -> bool:
    result = ranking.results.get(observation)
    return result is not None and result.outcome is Outcome.YES


def _doubt(ranking: Ranking) -> str:
    """What the first cause cannot be told apart from, and what would do so."""
    others = [f"{item.cause.id} {item.cause.title}" for item in ranking.alike[1:] if item.cause]
    if not others:
        return ""
    text = f" With what was recorded it cannot be told apart from {' or '.join(others)}"
    return f"{text}; {would_decide(ranking)}."


def would_decide(ranking: Ranking) -> str:
    """What would decide between the first two causes."""
    if ranking.decides is None:
        return "replaying the step from the state before it would show whether it is the batch"
    missing = ranking.results[ranking.decides].signal
    return f"{missing}, which was not recorded, would decide"


def _hypothesis(candidate: Candidate, ranking: Ranking) -> Hypothesis:
    probability = candidate.probability
    standing = Standing.OPEN if probability >= OPEN else Standing.RULED_OUT
    if candidate is ranking.first and candidate.cause is not None:
        standing = Standing.SUPPORTED if probability >= SUPPORTED else Standing.OPEN
    statement = "something that is not known, or that left no trace in what was recorded"
    if candidate.cause is not None:
        statement = TEXTS[candidate.cause].root_cause.rstrip(".")
    return Hypothesis(
        cause=candidate.cause,
        statement=statement,
        standing=standing,
        evidence=tuple(_evidence(candidate, ranking)),
        probability=probability,
    )


def _evidence(candidate: Candidate, ranking: Ranking) -> Iterable[Evidence]:
    """The heaviest evidence, with its weight."""
    heaviest = sorted(candidate.weights, key=lambda id: -abs(candidate.weights[id]))
    for id in heaviest[:MAX_EVIDENCE]:
        result, weight = ranking.results[id], candidate.weights[id]
        said = "" if result.outcome is Outcome.YES else "not so: "
        yield Evidence(
            signal=result.signal,
            observation=f"{said}{ALL_OBSERVATIONS[id].statement} ({result.observation})",
            favors=weight > 0,
            weight=weight,
        )


def _once(found: Iterable[Hypothesis | None]) -> tuple[Hypothesis, ...]:
    first: dict[object, Hypothesis] = {}
    for item in found:
        if item is not None:
            first.setdefault(item.cause or item.statement, item)
    return tuple(first.values())
