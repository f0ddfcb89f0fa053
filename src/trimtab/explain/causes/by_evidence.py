"""The cause by evidence: every observation weighed for every cause.

context --> observations --> rank --> hypotheses, conclusion
            (yes, no,        (weights fitted in the lab)
             not recorded)
"""

import dataclasses
from collections.abc import Collection, Iterable

from trimtab.core.causes import Cause, Evidence, Hypothesis, Standing
from trimtab.core.findings import Symptom
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.explain.causes.conclusions import (
    BY_SYMPTOM,
    CONCLUSIONS,
    DESTRUCTIVE_UPDATE,
    NOTHING_FITS,
    Conclusion,
    by_finding,
    by_users_alarm,
    each_cause_once,
    first_explained,
    hypothesis_of,
    is_users_alarm,
    opening,
)
from trimtab.explain.causes.ranking import Candidate, Ranking, all_weights, rank
from trimtab.explain.context import IncidentContext
from trimtab.explain.diagnosis import Diagnosis, make_diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.explain.evidence.checks import nonfinite_loss, stays_nonfinite

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

FLIP_CAUSES = frozenset({Cause.BIT_FLIP, Cause.BAD_DEVICE})
"""What flips a bit in memory that no code has written to."""


def explain_by_evidence(context: IncidentContext) -> Diagnosis:
    """Explain one incident by all observations that its records allow."""
    incident = context.incident
    results = {id: observe(context) for id, observe in ALL_OBSERVATIONS.items()}
    is_alone = results["several_ranks"].is_no
    possible = possible_causes(incident.symptoms, is_alone=is_alone)
    if _came_back(incident):
        possible = frozenset(possible) - LASTING_CAUSES
    flip = results["bit_flipped"]
    if flip.is_yes:  # proven: what the records look like besides says nothing against it
        proven = rank({"bit_flipped": flip}, all_weights(), FLIP_CAUSES)
        ranking = dataclasses.replace(proven, results=results)
    else:
        ranking = rank(results, all_weights(), possible)
    given = map(hypothesis_of, incident.findings)
    ranked = [_hypothesis(candidate, ranking) for candidate in _listed(ranking)]
    # A run that never learned has no course to classify: it is a plateau by its symptom.
    is_flat = set(incident.symptoms) == {Symptom.NO_LEARNING}
    return make_diagnosis(
        context,
        _conclude(incident, ranking),
        tuple(each_cause_once((*given, _destructive_update(context), *ranked))),
        incident_class=IncidentClass.PLATEAU if is_flat else None,
        ranking=ranking,
    )


def possible_causes(symptoms: Collection[str], *, is_alone: bool) -> Collection[Cause]:
    """Return the causes that an incident with these symptoms can have.

    Where only time is lost, what the data or the weights look like by chance explains nothing. A
    run of one rank has no other to differ from.
    """
    is_of_time = symptoms and TIME_SYMPTOMS.issuperset(symptoms)
    causes = TIME_CAUSES if is_of_time else frozenset(Cause)
    return causes - RANK_CAUSES if is_alone else causes


def _came_back(incident: Incident) -> bool:
    """Return whether the loss rose and is where it was before."""
    has_risen = incident.incident_class in (IncidentClass.RECOVERABLE, IncidentClass.LINGERING)
    return has_risen and incident.end is not None and incident.new_level is None


def _listed(ranking: Ranking) -> Iterable[Candidate]:
    for place, candidate in enumerate(ranking.candidates[:MAX_HYPOTHESES]):
        if place < 2 or candidate.probability >= MIN_PROBABILITY:
            yield candidate


def _conclude(incident: Incident, ranking: Ranking) -> Conclusion:
    """Return the explanation of a finding, or what the evidence says.

    The explanation of an opening finding outranks the evidence; a later one does so unless the
    evidence is sure of a cause.
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
    found = _by_ranking(incident, ranking)
    return dataclasses.replace(found, root_cause=found.root_cause + _doubt(ranking))


def _by_ranking(incident: Incident, ranking: Ranking) -> Conclusion:
    cause = ranking.first.cause
    if cause is not None:
        return CONCLUSIONS[cause]
    return next((BY_SYMPTOM[s] for s in incident.symptoms if s in BY_SYMPTOM), NOTHING_FITS)


def _destructive_update(context: IncidentContext) -> Hypothesis | None:
    """Return what a NaN that stays means, whatever caused it; None if the loss is finite again."""
    stays = stays_nonfinite(context)
    if not (stays.is_yes and nonfinite_loss(context).is_yes):
        return None
    return Hypothesis(
        cause=None,
        statement=DESTRUCTIVE_UPDATE.format(step=context.incident.peak.step),
        standing=Standing.SUPPORTED,
        evidence=(stays.to_evidence(),),
    )


def _doubt(ranking: Ranking) -> str:
    """Return what the first cause cannot be told apart from, and what would do so."""
    others = [f"{item.cause.id} {item.cause.title}" for item in ranking.alike[1:] if item.cause]
    if not others:
        return ""
    text = f" With what was recorded it cannot be told apart from {' or '.join(others)}"
    return f"{text}; {would_decide(ranking)}."


def would_decide(ranking: Ranking) -> str:
    """Return what would decide between the first two causes."""
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
        statement = CONCLUSIONS[candidate.cause].root_cause.rstrip(".")
    return Hypothesis(
        cause=candidate.cause,
        statement=statement,
        standing=standing,
        evidence=tuple(_evidence(candidate, ranking)),
        probability=probability,
    )


def _evidence(candidate: Candidate, ranking: Ranking) -> Iterable[Evidence]:
    """Yield the heaviest evidence, with its weight."""
    heaviest = sorted(candidate.weights, key=lambda id: -abs(candidate.weights[id]))
    for id in heaviest[:MAX_EVIDENCE]:
        result, weight = ranking.results[id], candidate.weights[id]
        said = "" if result.is_yes else "not so: "
        yield Evidence(
            signal=result.signal,
            observation=f"{said}{ALL_OBSERVATIONS[id].statement} ({result.observation})",
            favors=weight > 0,
            weight=weight,
        )
