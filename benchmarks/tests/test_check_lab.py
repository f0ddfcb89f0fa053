"""A rule is marked "shown in the lab" if and only if the published trials say so."""

import re
from pathlib import Path

import pytest
from benchmarks.check_lab import MIN_BETTER, SEEDS, TRIALS, Trial, fault_and_fix

from trimtab.checks.catalogue import PLAN_RULES
from trimtab.checks.rule import Shown

RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def trials_won() -> dict[str, int]:
    """ConfigRule to the seeds in which its fix was better, as published."""
    section = RESULTS.read_text(encoding="utf-8").split("## Check in the lab")[1].split("\n## ")[0]
    rows = re.findall(rf"(TT\d{{3}}) \((\d+) of {SEEDS},", section)
    return {rule: int(won) for rule, won in rows}


def test_the_marks_are_those_of_the_published_trials() -> None:
    shown = {rule for rule, won in trials_won().items() if won >= MIN_BETTER}
    assert {rule.id for rule in PLAN_RULES.values() if rule.shown is Shown.LAB} == shown
    assert len(shown) >= 1


def test_every_trial_is_published() -> None:
    assert set(trials_won()) == {trial.rule for trial in TRIALS}
    assert len(TRIALS) >= 8


@pytest.mark.parametrize("trial", TRIALS, ids=[trial.rule for trial in TRIALS])
def test_a_trial_has_its_fault_and_the_fix_takes_it_away(trial: Trial) -> None:
    rule = PLAN_RULES[trial.rule]
    broken, fixed = fault_and_fix(trial)
    assert broken != fixed
    assert rule.concerns(broken)
    assert not rule.concerns(fixed) or rule.run(fixed) is None
