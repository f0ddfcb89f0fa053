import re
from pathlib import Path
from typing import Any

import pytest
from tests.checks.plans import HEALTHY, PLANTED

from trimtab.checks import check_config
from trimtab.checks.catalogue import PLAN_RULES
from trimtab.checks.config_file import FIELDS
from trimtab.checks.rule import Fault, Level

ROOT = Path(__file__).parents[2]


def spoilt(changes: dict[str, Any]) -> dict[str, Any]:
    return {**HEALTHY, **changes}


def test_the_healthy_plan_is_healthy_and_every_rule_that_concerns_it_looks() -> None:
    found = check_config(HEALTHY)
    assert not found.findings
    assert not found.not_run


def test_every_rule_has_a_planted_fault() -> None:
    assert {rule_id for rule_id, _ in PLANTED} == set(PLAN_RULES)
    assert len(PLANTED) >= 40


@pytest.mark.parametrize(("rule_id", "changes"), PLANTED)
def test_a_planted_fault_is_found_by_its_rule_alone_which_can_be_off_and_the_fix_mends_it(
    rule_id: str, changes: dict[str, Any]
) -> None:
    found = check_config(spoilt(changes))
    assert rule_id in found.ids
    grave = {o.rule.id for o in found.findings if (o.level or 0) >= Level.WARNING}
    assert grave <= {rule_id}
    without = check_config(spoilt(changes), off=[rule_id.lower()])
    assert rule_id not in without.ids
    assert without.off == (rule_id,)
    fault = PLAN_RULES[rule_id].run(found.plan)
    assert isinstance(fault, Fault)
    assert fault.fix or fault.how, "a rule without a fix is a complaint"
    mended = {**spoilt(changes), **fault.fix}
    if fault.how:  # what to do with a table of points is told in words
        del mended["lr_points"]
    again = check_config(mended)
    assert again.count(Level.WARNING) == again.count(Level.ERROR) == 0
    assert rule_id not in again.ids


@pytest.mark.parametrize("rule", PLAN_RULES.values(), ids=PLAN_RULES)
def test_a_rule_says_what_why_and_by_whom(rule: Any) -> None:
    assert re.fullmatch(r"TT\d{3}", rule.id)
    assert not rule.title.endswith(".")
    assert rule.mechanism.endswith(".")
    assert ". " not in rule.mechanism, "one sentence"
    assert rule.source
    known = FIELDS | {"adam", "batch_tokens", "model_size", "large", "mixture", "curve"}
    known |= {"rollback", "detection_delay"}
    assert set(rule.function.needs + rule.function.uses) <= known


def test_a_rule_that_knows_too_little_says_what_it_needs() -> None:
    found = check_config({"lr": 3e-4, "optimizer": "adamw"})
    needs = {skipped.rule.id: skipped.needs for skipped in found.not_run}
    assert needs["TT014"] == ("beta2", "batch_size", "seq_len")
    assert "TT048" in needs  # nobody said that it is not fp8
    assert "TT031" not in needs  # a run that is not resumed has no resume to be wrong


def test_a_rule_that_does_not_concern_the_plan_is_not_listed() -> None:
    found = check_config({"compute": "bf16", "optimizer": "sgd", "parameters": 1e8})
    listed = {skipped.rule.id for skipped in found.not_run}
    assert not listed & {"TT001", "TT040", "TT048", "TT064"}


def test_the_worst_comes_first() -> None:
    found = check_config(spoilt({"epsilon": 1e-2, "clip_norm": 0.0, "weight_decay": 0.0}))
    levels = [finding.level for finding in found.findings]
    assert levels == [Level.ERROR, Level.WARNING, Level.ADVICE]


def test_what_the_config_does_not_say_can_be_reported() -> None:
    bare = {"lr": 3e-3, "optimizer": "adamw"}
    assert "TT012" not in check_config(bare).ids
    told = check_config(bare, known={"parameters": 7e9})
    assert "TT012" in told.ids


def test_a_rollback_is_reckoned_in_steps_hours_and_money() -> None:
    cost = check_config(spoilt({"detection_steps": 90})).plan.rollback
    assert cost is not None
    assert (cost.steps, cost.seconds) == (1000 + 90 + 10, 2200.0)
    assert cost.dollars == pytest.approx(2200 / 3600 * 1000)
    assert str(cost) == "1,100 steps = 37 min = $611"
    short = check_config(spoilt({"detection_steps": 90, "steps": 800})).plan.rollback
    assert short is not None
    assert short.steps == 800  # no more than the run has


def test_a_rate_that_no_size_of_a_model_takes_is_found_without_the_size() -> None:
    plan = {"optimizer": "adamw", "steps": 1000}
    assert "TT012" in check_config({**plan, "lr": 0.03}).ids
    assert "TT012" not in check_config({**plan, "lr": 3e-3}).ids
    toy = {**plan, "batch_size": 32, "seq_len": 32}
    assert "TT012" not in check_config({**toy, "lr": 0.03}).ids


def test_a_fix_has_no_digits_that_come_from_arithmetic() -> None:
    fault = PLAN_RULES["TT021"].run(check_config(spoilt({"lr": 6e-4, "final_lr": 6e-3})).plan)
    assert isinstance(fault, Fault)
    assert fault.fix == {"final_lr": 6e-5}
