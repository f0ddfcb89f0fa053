"""The cause by evidence: every observation weighed for every cause.

context --> observations --> rank --> hypotheses, conclusion
            (yes, no,        (weights fitted in the lab)
             not recorded)
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence

from trimtab.core.causes import Cause, Evidence, Hypothesis, Standing
from trimtab.core.findings import NOT_FINITE
from trimtab.core.signals import EVAL_LOSS, LOSS, LR, RESPONSE_LENGTH
from trimtab.core.text import clause, listed, uncapitalized
from trimtab.explain.causes import conclusions
from trimtab.explain.causes.plausible import (
    CURVES,
    DATA_CAUSES,
    RATE_CAUSES,
    RISING,
    TIME_SYMPTOMS,
    Situation,
    base_rates,
    concerns,
    situation_of,
)
from trimtab.explain.causes.ranking import SUPPORTED, Candidate, Ranking, all_weights, rank
from trimtab.explain.causes.statements import (
    BATCH_NOT_FINITE,
    BY_SYMPTOM,
    Case,
    Said,
    say,
    say_nothing_fits,
)
from trimtab.explain.context import (
    IncidentContext,
    cured_by_undo,
    has_responses,
    proof_of_harm,
    switched,
)
from trimtab.explain.diagnosis import Diagnosis, make_diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.explain.evidence.checks import (
    Answers,
    ObservedOutcome,
    nonfinite_loss,
    nonfinite_weights,
    stays_nonfinite,
)
from trimtab.explain.evidence.observation import Inputs
from trimtab.explain.evidence.outside import RECURRING

SURE, WORTH_SAYING, OPEN = 0.75, 0.15, 0.05
"""Probabilities from which on a hypothesis outranks the explanation of a later finding, is worth a
mention where no cause is named, and counts as open: less probable ones, except the first two, are
not listed."""

_OF_THE_RATE = RATE_CAUSES | {Cause.LR_TOO_HIGH}
"""Causes for which the learning rate is looked at before any other signal."""


CURED = 0.9
"""How probable it is that a state which an undo has cured was corrupted. Chosen: weights that grew
until an operation failed are cured by an older state, too."""

MAX_HYPOTHESES, MAX_EVIDENCE = 5, 4
MIN_WEIGHT = 0.2
"""Lighter evidence is not listed: it moves the odds by less than a fifth."""

NOT_RECORDED = ObservedOutcome.NOT_RECORDED

RULES_OUT = math.log(0.1)
"""A cause is ruled out where its own signals show nothing, which is ten times rarer with it.
Source: what decides a cause is seen in nine of ten of its incidents in the lab."""

GUIDES = (
    Cause.LR_DISCONTINUITY,
    Cause.DUPLICATE_BATCH,
    Cause.FP16_OVERFLOW,
    Cause.WRONG_RESUME,
)
"""What is said of every incident, if it is ruled out. Source: what the stability guides ask first,
schedule, repeated batch, precision, resume."""


def explain_by_evidence(context: IncidentContext) -> Diagnosis:
    """Explain one incident by all observations that its records allow."""
    incident = context.incident
    answers = observe_all(context)
    case = Case(context=context, answers=answers)
    is_flip = "bit_flipped" in answers.yes
    if is_flip:  # proven: what the records look like besides says nothing against it
        only = Situation(impossible=frozenset(Cause) - {Cause.BIT_FLIP})
        flip = Answers({"bit_flipped": answers["bit_flipped"]})
        ranking = rank(flip, all_weights(), only)
        proven = dataclasses.replace(ranking.first, probability=1.0)
        ranking = dataclasses.replace(ranking, candidates=(proven,), results=answers)
    else:
        situation = situation_of(context, answers)
        ranking = rank(answers, all_weights(), situation, _alike(context, situation))
    if conclusions.is_users_alarm(incident) and ranking.named is None:
        # What a user's own rule means, only the user knows: base rates alone are no finding.
        ranking = dataclasses.replace(ranking, candidates=ranking.candidates[-1:], decides=None)
    change = _change(context, ranking)
    proof = proof_of_harm(incident, context.block)
    cure = None if is_flip else cured_by_undo(context)
    if proof is not None and not is_flip:  # NaN in the loss and the gradients follows from it
        ranking = dataclasses.replace(ranking, candidates=ranking.candidates[-1:], decides=None)
        conclusion = conclusions.by_proof(proof)
        why = str(proof.facts.get("why"))
        harm = Hypothesis(cause=None, statement=why, standing=Standing.SUPPORTED, evidence=())
        hypotheses = conclude(case, ranking, harm)[1]
    elif cure is not None:
        ranking = dataclasses.replace(ranking, candidates=ranking.candidates[-1:], decides=None)
        conclusion = conclusions.by_cure(cure, incident.onset.step)
        harm = Hypothesis(
            cause=None,
            statement="a weight or a moment was corrupted",
            standing=Standing.SUPPORTED,
            evidence=(),
            probability=CURED,
        )
        hypotheses = conclude(case, ranking, harm)[1]
    elif change is not None:
        ranking = dataclasses.replace(ranking, candidates=ranking.candidates[-1:], decides=None)
        conclusion = conclusions.by_change(change, incident)
        statement = f"the change: {change}"
        meant = Hypothesis(
            cause=None, statement=statement, standing=Standing.SUPPORTED, evidence=()
        )
        others = conclude(case, ranking, meant)[1]
        # What is not known is no hypothesis beside what is.
        hypotheses = tuple(one for one in others if one.cause or one.probability is None)
    else:
        conclusion, hypotheses = conclude(case, ranking, _destructive_update(context, answers))
    return make_diagnosis(context, conclusion, hypotheses, ranking=ranking)


_COUNTER = re.compile(r"(?i)\S*(segment|attempt|launch)")
"""What counts the launches of a run is no setting: it changes with a resume."""


def _change(context: IncidentContext, ranking: Ranking) -> str | None:
    """Return the setting that changed as the loss did, unless the evidence is sure of a cause."""
    incident, named = context.incident, ranking.named
    if conclusions.is_users_alarm(incident) or not RISING.intersection(incident.symptoms):
        return None
    is_sure = named is not None and named.probability >= SURE
    if is_sure or incident.is_of_policy or not NOT_FINITE.isdisjoint(incident.symptoms):
        return None
    return next((change for change in switched(context) if not _COUNTER.match(change)), None)


def observe_all(context: IncidentContext) -> Answers:
    """Make every observation on an incident, each once."""
    inputs = Inputs(context)
    return Answers({id: observe(context, inputs) for id, observe in ALL_OBSERVATIONS.items()})


def _alike(context: IncidentContext, situation: Situation) -> list[tuple[Answers, Situation]]:
    """Return what is seen in incidents of the run that look alike: many spikes have one cause.

    An incident with signals of its own is explained by them.
    """
    if context.similar < RECURRING or situation.has_own_signals:
        return []
    seen = ((other, observe_all(other)) for other in context.others)
    found = [(answers, situation_of(other, answers)) for other, answers in seen]
    return [item for item in found if item[1].shape == situation.shape]


def conclude(
    case: Case, ranking: Ranking, mechanism: Hypothesis | None = None
) -> tuple[conclusions.Conclusion, tuple[Hypothesis, ...]]:
    """Return what a ranking says about an incident: its cause, and all hypotheses.

    Both are written from the same ranking, so that no two parts of a report can disagree.
    `mechanism` is what happened whatever the cause, if that is known.
    """
    incident = case.context.incident
    conclusion = _conclude(case, ranking)
    given = [found for found in map(conclusions.hypothesis_of, incident.findings) if found]
    ranked: list[Hypothesis | None] = [
        _hypothesis(candidate, ranking, case) for candidate in _listed(ranking)
    ]
    # The cause comes first, whether a finding names it or the evidence does.
    is_given = any(found.cause == conclusion.cause for found in given)
    first, last = (given, ()) if is_given else ((), given)
    # What happened to the weights follows from the cause, where that is known.
    follows = ranking.named is not None and conclusion.cause == ranking.named.cause
    ranked.insert(int(follows), mechanism)
    every = [*first, *ranked, *last, *_ruled_out(case, ranking)]
    # What did not happen comes after what may have.
    every.sort(key=lambda item: item is mechanism and _is_out(item))
    return conclusion, tuple(conclusions.each_cause_once(every))


def _is_out(hypothesis: Hypothesis | None) -> bool:
    return hypothesis is not None and hypothesis.standing is Standing.RULED_OUT


def _ruled_out(case: Case, ranking: Ranking) -> Iterable[Hypothesis]:
    """Yield the usual suspects that what was recorded rules out, with what does so."""
    incident = case.context.incident
    is_other = conclusions.is_users_alarm(incident) or set(incident.symptoms) <= TIME_SYMPTOMS
    if incident.is_of_policy or is_other or not ranking.results:
        return
    for cause in GUIDES:
        if cause is Cause.WRONG_RESUME and case.context.facts.ranks is None:
            continue  # a log says nothing of what was restored, and may hide a resume
        own = set(base_rates()["decides"][cause.id]) - CURVES
        made = [id for id in own if ranking.results[id].is_answer]
        weights = {id: all_weights().weigh(id, yes=False)[cause] for id in made}
        if ranking.results.yes.isdisjoint(own) and sum(weights.values()) <= RULES_OUT:
            heaviest = min(weights, key=weights.__getitem__)
            yield Hypothesis(
                cause=cause,
                statement="what was recorded excludes it",
                standing=Standing.RULED_OUT,
                evidence=(_evidence_of(heaviest, ranking, weights[heaviest]),),
            )


def _listed(ranking: Ranking) -> Iterable[Candidate]:
    for place, candidate in enumerate(ranking.candidates[:MAX_HYPOTHESES]):
        if place < 2 or candidate.probability >= OPEN:
            yield candidate


def _conclude(case: Case, ranking: Ranking) -> conclusions.Conclusion:
    """Return the explanation of a finding, or what the evidence says.

    The explanation of an opening finding outranks the evidence; a later one does so unless the
    evidence is sure of a cause.
    """
    incident, named = case.context.incident, ranking.named
    explained = conclusions.first_explained(conclusions.opening(incident))
    if explained is None and (named is None or named.probability < SURE):
        explained = conclusions.first_explained(incident.findings)
    if explained is not None:
        return conclusions.by_finding(*explained)
    if named is not None and isinstance(named.cause, Cause):
        said = say(named.cause, case)
        return _conclusion(named.cause, said._replace(root_cause=said.root_cause + _doubt(ranking)))
    if conclusions.is_users_alarm(incident):
        return conclusions.by_users_alarm(incident)
    return _conclusion(None, _not_known(case, ranking))


def _conclusion(cause: Cause | None, said: Said) -> conclusions.Conclusion:
    return conclusions.Conclusion(cause, said.root_cause, said.fix, said.lesson)


def _not_known(case: Case, ranking: Ranking) -> Said:
    """Return what the incident is like, and the signal that would tell."""
    if ranking.results["batch_nonfinite"].is_yes:
        return BATCH_NOT_FINITE(case)
    symptoms = case.context.incident.symptoms
    known = next((BY_SYMPTOM[symptom] for symptom in symptoms if symptom in BY_SYMPTOM), None)
    if known is not None:
        return known(case)
    nothing = say_nothing_fits(case)
    record = _record_it(ranking, case) or nothing.fix
    likely = [c for c in ranking.candidates if c.cause and c.probability >= WORTH_SAYING][:2]
    if not likely:
        return nothing._replace(fix=record)
    tell = _tell(likely, ranking, case)
    if Cause.DATA_MIX_SHIFT in {item.cause for item in likely}:
        record = ""  # an evaluation loss tells, and any loop can log one
    shares = [(_named(item), 10 * round(10 * item.probability)) for item in likely]
    if not any(item.favors for item in _evidence(likely[0], ranking)):
        said = " and ".join(f"{name} in about {share} %" for name, share in shares)
        usual = "No evidence points to a cause. In published incidents like this the cause was "
        return nothing._replace(root_cause=f"{usual}{said}.{tell}", fix=record or nothing.fix)
    like = " or ".join(f"{name} (about {share} %)" for name, share in shares)
    return nothing._replace(
        root_cause=f"Not known; possibly {like}.{tell}",
        fix=f"{_fix_if_so(likely[0], case)} {record}".rstrip(),
    )


def _named(candidate: Candidate) -> str:
    return candidate.cause.phrase if candidate.cause else ""


def _tell(likely: Sequence[Candidate], ranking: Ranking, case: Case) -> str:
    """Return what to record to know which of the likely causes it was; "" if nothing would tell."""
    if Cause.DATA_MIX_SHIFT in {item.cause for item in likely}:
        if case.context.block.column(EVAL_LOSS).recorded:
            return ""
        return " Log an evaluation loss: if it did not move, the data changed."
    missing = _would_tell(ranking, case)
    purpose = "tell them apart" if len(likely) > 1 else "be surer"
    return f" Record {listed(missing)} to {purpose}." if missing else ""


def _fix_if_so(candidate: Candidate, case: Case) -> str:
    """Return what fixes the first cause: whoever believes in it can do so before it is known."""
    if not isinstance(candidate.cause, Cause):
        return ""
    fix = say(candidate.cause, case).fix
    return f"If it was {candidate.cause.phrase}: {uncapitalized(fix)}"


def _would_tell(ranking: Ranking, case: Case) -> list[str]:
    """Return the signals that would tell the first causes apart, those that every loop has first.

    Without norm and rate no other signal says much; a policy has signals of its own.
    """
    block, decides = case.context.block, ranking.decides
    usual: tuple[str, ...] = conclusions.OF_LOOP
    if case.context.incident.is_of_policy:
        usual = conclusions.OF_POLICY
    if not has_responses(case.context):
        usual = tuple(name for name in usual if name != RESPONSE_LENGTH)
    missing = [name for name in usual if not block.column(name).recorded]
    is_bare = missing and usual[0] in missing
    if LR in missing and {item.cause for item in ranking.candidates[:2]} & _OF_THE_RATE:
        return missing
    if decides is not None and not is_bare:
        return [ranking.results[decides].signal]
    return missing


def _record_it(ranking: Ranking, case: Case) -> str:
    """Return how to record what would tell next time; "" if nothing in particular would."""
    signals = _would_tell(ranking, case)
    if not signals:
        return ""
    how: dict[str, list[str]] = {}
    for name in signals:
        how.setdefault(conclusions.how_to_record(name), []).append(name)
    return f"Next time, {'; '.join(f'{call} {listed(names)}' for call, names in how.items())}."


def _destructive_update(context: IncidentContext, answers: Answers) -> Hypothesis | None:
    """Return what a NaN that stays means, whatever caused it; None if the loss is finite again.

    Finite weights rule it out; weights that are not finite confirm it and say where.
    """
    stays = stays_nonfinite(context)
    was_finite = len(context.before(LOSS, 1)) > 0
    if not (stays.is_yes and nonfinite_loss(context).is_yes and was_finite):
        return None
    weights, held = nonfinite_weights(context), answers["weights_nonfinite"]
    statement = conclusions.DESTRUCTIVE_UPDATE.format(step=context.incident.peak.step)
    evidence = [stays.to_evidence()]
    is_out = weights.is_no or answers["module_nonfinite"].is_yes  # its inputs are finite
    if held.is_yes or weights.is_yes:
        found = held if held.is_yes else weights
        statement = statement.replace(conclusions.NO_TENSOR, found.observation)
        evidence.insert(0, found.to_evidence())
        is_out = False
    elif is_out:
        seen = weights if weights.is_no else answers["module_nonfinite"]
        evidence.insert(0, dataclasses.replace(seen.to_evidence(), favors=False))
        statement = statement.replace(f"; {conclusions.NO_TENSOR}", "")
    return Hypothesis(
        cause=None,
        statement=statement,
        standing=Standing.RULED_OUT if is_out else Standing.SUPPORTED,
        evidence=tuple(evidence),
    )


def _doubt(ranking: Ranking) -> str:
    """Return what the first cause cannot be told apart from, and what would do so."""
    others = [item.cause.phrase for item in ranking.alike[1:] if item.cause]
    if not others:
        return ""
    fit = "fits" if len(others) == 1 else "fit"
    names = " and ".join(others)
    text = f" {names[:1].upper()}{names[1:]} {fit} the recorded data as well"
    return f"{text}." if _is_undecidable(ranking) else f"{text}; {would_decide(ranking)}."


def would_decide(ranking: Ranking) -> str:
    if _is_undecidable(ranking):
        return "what was recorded does not tell them apart"
    if ranking.decides is None:
        return "replaying the step from the state before it would show whether it is the batch"
    missing = ranking.results[ranking.decides].signal
    return f"{missing}, which was not recorded, would decide"


def _is_undecidable(ranking: Ranking) -> bool:
    """Return whether no signal would decide, and the batch, which a replay shows, is no cause."""
    compared = {item.cause for item in (*ranking.alike, *ranking.candidates[:2])}
    return ranking.decides is None and compared.isdisjoint(DATA_CAUSES)


def _hypothesis(candidate: Candidate, ranking: Ranking, case: Case) -> Hypothesis:
    probability = candidate.probability
    standing = Standing.OPEN if probability >= OPEN else Standing.RULED_OUT
    if candidate is ranking.first and candidate.cause is not None:
        standing = Standing.SUPPORTED if probability >= SUPPORTED else Standing.OPEN
    statement = "no known cause"
    if isinstance(candidate.cause, Cause):
        said = say(candidate.cause, case).root_cause
        statement = said.rstrip(".") if candidate is ranking.named else _if_so(said)
    return Hypothesis(
        cause=candidate.cause,
        statement=statement,
        standing=standing,
        evidence=tuple(_evidence(candidate, ranking)),
        probability=probability,
    )


def _if_so(root_cause: str) -> str:
    return f"if so, {clause(root_cause)}"


def _evidence(candidate: Candidate, ranking: Ranking) -> Iterable[Evidence]:
    """Yield the heaviest evidence, with its weight: first what speaks for the cause."""
    weights = {
        id: weight
        for id, weight in candidate.weights.items()
        if abs(weight) >= MIN_WEIGHT and (candidate.cause is None or concerns(id, candidate.cause))
    }
    yes = ranking.results.yes
    if candidate.cause and not yes.isdisjoint(base_rates()["decides"][candidate.cause.id]):
        # One sign of a cause is enough: that others of it were not seen is nothing against it.
        weights = {id: weight for id, weight in weights.items() if weight > 0 or id in yes}
    heaviest = sorted(weights, key=lambda id: -abs(weights[id]))[:MAX_EVIDENCE]
    heaviest.sort(key=lambda id: weights[id] < 0)
    if candidate.cause and not any(weights[id] > 0 for id in heaviest):
        usual = "no recorded signal speaks for it; it is a usual cause of such incidents"
        yield Evidence(signal="base rate", observation=usual, favors=None)
    for id in heaviest:
        yield _evidence_of(id, ranking, weights[id])


def _evidence_of(id: str, ranking: Ranking, weight: float) -> Evidence:
    result = ranking.results[id]
    said = f"{ALL_OBSERVATIONS[id].statement}{'' if result.is_yes else ': no'}"
    is_sentence = result.observation[:1].isupper()
    return Evidence(
        signal=result.signal,
        observation=result.observation if is_sentence else f"{said} ({result.observation})",
        favors=weight > 0,
        weight=weight,
    )
