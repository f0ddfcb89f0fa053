"""Fitting and measuring causes: what is known weighs as a few incidents, seeds never mix."""

from pathlib import Path

from benchmarks.causes import fitting
from benchmarks.causes.cases import Case
from benchmarks.causes.expectations import EXPECTATIONS
from benchmarks.causes.fitting import fit, leave_one_seed_out

from trimtab.core.causes import Cause
from trimtab.explain.causes.plausible import Situation
from trimtab.explain.causes.ranking import all_weights
from trimtab.explain.evidence import OBSERVATIONS

PAGE = Path(__file__).parents[2] / "docs" / "detection.md"


def case(seed: int, cause: Cause, *yes: str) -> Case:
    answers = {id: "yes" if id in yes else "no" for id in OBSERVATIONS}
    return Case(
        run=f"{cause.id}-{seed}",
        kind=cause.id,
        grade="severe",
        seed=seed,
        cause=cause,
        answers=answers,
        situation=Situation(has_own_signals=True),
        is_few=False,
    )


def test_every_cause_has_expectations_and_every_observation_is_expected() -> None:
    assert set(EXPECTATIONS) == {cause for cause in Cause if not cause.is_of_policy}
    expected = {
        id for item in EXPECTATIONS.values() for id in f"{item.typical} {item.possible}".split()
    }
    assert expected == set(OBSERVATIONS)


def test_the_page_shows_what_speaks_for_each_cause() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.split("\n## Evidence for each cause\n")[1].split("\n## ")[0]
    assert fitting.speaks_for(all_weights()) in shown


def test_a_seed_is_measured_with_weights_that_have_not_seen_it() -> None:
    # Seed 0 claims that a hard batch jumps the learning rate; the other seed shows nothing odd.
    odd = [case(0, Cause.HARD_BATCH, "lr_jumped")] * 50
    ranked = leave_one_seed_out([*odd, case(1, Cause.LR_DISCONTINUITY, "lr_jumped")], 1.0)
    by_seed = {item.seed: ranking.first.cause for item, ranking in ranked}
    assert by_seed[0] is Cause.LR_DISCONTINUITY
    assert by_seed[1] is Cause.HARD_BATCH


def test_a_cause_that_is_always_shown_is_found() -> None:
    cases = [case(seed, Cause.LR_DISCONTINUITY, "lr_jumped") for seed in (0, 1)]
    weights = fit(cases, {"seeds": [0, 1]})
    assert weights.weigh("lr_jumped", yes=True)[Cause.LR_DISCONTINUITY] > 2
    ranked = leave_one_seed_out(cases, weights.temperature)
    assert fitting.summary("both", ranked)[2] == "2 of 2 (100 %)"
