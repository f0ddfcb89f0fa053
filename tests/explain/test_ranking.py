"""Causes are ranked by the sum of what was seen; what was not recorded says nothing."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.synthetic import case_of, diagnosis_of

from trimtab.core.causes import Cause
from trimtab.core.findings import Symptom
from trimtab.explain.causes.plausible import Situation
from trimtab.explain.causes.ranking import Ranking, Weights, lab_weights, rank
from trimtab.explain.causes.statements import say
from trimtab.explain.evidence import ALL_OBSERVATIONS, OBSERVATIONS
from trimtab.explain.evidence.checks import Answers, Observed, ObservedOutcome

YES, NO = ObservedOutcome.YES, ObservedOutcome.NO
MISSING = ObservedOutcome.NOT_RECORDED

UNUSUAL = dict.fromkeys(Cause, 0.1)
TOY = Weights(
    shares={
        "one_direction": UNUSUAL | {Cause.HARD_BATCH: 0.8, Cause.RARE_TOKENS: 0.8},
        "rare_tokens": UNUSUAL | {Cause.RARE_TOKENS: 0.9},
        "half_precision": UNUSUAL | {Cause.FP16_OVERFLOW: 0.9},
    },
    temperature=1.0,
    provenance={},
)


def seen(**outcomes: ObservedOutcome) -> Ranking:
    given = {name: outcomes.get(name, ObservedOutcome.NOT_RECORDED) for name in TOY.shares}
    return rank(
        Answers(
            {
                name: Observed(signal=name, outcome=outcome, observation="")
                for name, outcome in given.items()
            }
        ),
        TOY,
        Situation(has_own_signals=True),
    )


def of(ranking: Ranking) -> Mapping[Cause | None, float]:
    return {candidate.cause: candidate.probability for candidate in ranking.candidates}


def test_the_cause_that_more_speaks_for_comes_first() -> None:
    ranking = seen(
        one_direction=YES,
        rare_tokens=YES,
        half_precision=NO,
    )
    assert ranking.first.cause is Cause.RARE_TOKENS
    assert ranking.first.probability > 0.6
    assert sum(of(ranking).values()) == pytest.approx(1)


def test_the_odds_of_two_causes_are_the_product_of_their_likelihood_ratios() -> None:
    found = of(seen(one_direction=YES, half_precision=YES))
    ratio = found[Cause.FP16_OVERFLOW] / found[Cause.RARE_TOKENS]
    assert ratio == pytest.approx((0.1 * 0.9) / (0.8 * 0.1))


def test_what_was_not_recorded_says_nothing() -> None:
    with_no = of(seen(one_direction=YES, rare_tokens=NO))
    without = of(seen(one_direction=YES))
    assert without[Cause.HARD_BATCH] == without[Cause.RARE_TOKENS]
    assert with_no[Cause.HARD_BATCH] > with_no[Cause.RARE_TOKENS]


def test_causes_that_cannot_be_told_apart_are_a_group_with_the_signal_that_would_decide() -> None:
    ranking = seen(one_direction=YES, half_precision=NO)
    alike = {candidate.cause for candidate in ranking.alike}
    assert alike == {Cause.HARD_BATCH, Cause.RARE_TOKENS}
    assert ranking.decides == "rare_tokens"
    decided = seen(
        one_direction=YES,
        half_precision=NO,
        rare_tokens=YES,
    )
    assert [candidate.cause for candidate in decided.alike] == [Cause.RARE_TOKENS]
    assert decided.decides is None


def test_no_cause_is_named_that_nothing_speaks_for() -> None:
    ranking = seen(one_direction=NO, rare_tokens=NO)  # leaves fp16, but nothing shows it
    assert ranking.first.cause is None
    assert len(ranking.candidates) == 1
    assert seen().first.cause is None


def test_what_decided_is_what_was_seen_and_speaks_for_the_first_against_the_second() -> None:
    ranking = seen(
        one_direction=YES,
        rare_tokens=YES,
        half_precision=NO,
    )
    assert ranking.deciding(3) == ("rare_tokens",)  # a direction is no sign of rare tokens
    assert ranking.deciding(1) == ("rare_tokens",)


@settings(deadline=None)  # the first example reads the weights
@given(
    st.dictionaries(st.sampled_from(sorted(OBSERVATIONS)), st.sampled_from(list(ObservedOutcome)))
)
def test_any_answers_give_probabilities(outcomes: dict[str, ObservedOutcome]) -> None:
    results = {
        id: Observed(signal="", outcome=outcome, observation="") for id, outcome in outcomes.items()
    }
    ranking = rank(Answers(results), lab_weights())
    shares = [candidate.probability for candidate in ranking.candidates]
    assert sum(shares) == pytest.approx(1)
    assert all(0 <= share <= 1 and math.isfinite(share) for share in shares)
    assert None in of(ranking)


def test_the_data_file_covers_every_observation_and_every_cause() -> None:
    weights = lab_weights()
    assert set(weights.shares) == set(OBSERVATIONS)
    assert set(weights.causes) == {cause for cause in Cause if not cause.is_of_policy}
    assert {"command", "date", "seeds", "incidents"} <= set(weights.provenance)
    assert max(weights.provenance["seeds"]) <= 30  # later seeds are for measuring
    assert all(0 < share < 1 for row in weights.shares.values() for share in row.values())


def test_every_cause_is_stated_with_what_was_seen_and_without_what_was_not() -> None:
    number = "NUMBER"
    every = {id: Observed(signal=id, outcome=YES, observation=number) for id in ALL_OBSERVATIONS}
    none = {id: Observed(signal=id, outcome=MISSING, observation="") for id in ALL_OBSERVATIONS}
    incident = diagnosis_of(Symptom.LOSS_SPIKE).incident
    for cause in Cause:
        told = say(cause, case_of(incident, Answers(every)))
        assert number in told.root_cause, cause
        silent = say(cause, case_of(incident, Answers(none)))
        for sentence in (*told, *silent):
            assert re.fullmatch(r"[A-Z`].*\.", sentence), sentence
            assert "None" not in sentence.replace("None needed", ""), sentence
            assert not re.search(r":\.|  |\{|\}", sentence), sentence


def test_the_docs_list_every_cause() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in ("detection.md", "rl.md"))
    for cause in Cause:
        assert f"| {cause.id} {cause.title} |" in page
