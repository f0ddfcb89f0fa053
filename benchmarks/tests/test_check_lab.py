"""A rule is marked "shown in the lab" if and only if the trials say so."""

import pytest
from benchmarks.check_lab import MIN_BETTER, TRIALS, Trial, fault_and_fix

from trimtab.checks.catalogue import PLAN_RULES
from trimtab.checks.rule import Shown


def test_the_marks_are_those_of_the_trials() -> None:
    shown = {trial.rule for trial in TRIALS if trial.won >= MIN_BETTER}
    assert {rule.id for rule in PLAN_RULES.values() if rule.shown is Shown.LAB} == shown


@pytest.mark.parametrize("trial", TRIALS, ids=[trial.rule for trial in TRIALS])
def test_a_trial_has_its_fault_and_the_fix_takes_it_away(trial: Trial) -> None:
    rule = PLAN_RULES[trial.rule]
    broken, fixed = fault_and_fix(trial)
    assert broken != fixed
    assert rule.concerns(broken)
    assert not rule.concerns(fixed) or rule.run(fixed) is None
