"""Each planted fault is found by its own check, and a healthy run has no finding."""

import pytest
from tests.kit.check_objects.faults import FAULTS, Planted, healthy

from trimtab.checks.catalogue import PLAN_RULES, object_rules
from trimtab.checks.objects.run import check
from trimtab.checks.report import CheckReport


def run_only(fault: Planted) -> CheckReport:
    """Return a report of the one rule: the benchmark runs all of them on each fault."""
    setup = fault.make()
    return check(**setup, off=({*object_rules(), *PLAN_RULES}) - {fault.id})


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.id} {fault.what}" for fault in FAULTS])
def test_a_planted_fault_is_found(fault: Planted) -> None:
    report = run_only(fault)
    assert report.ids == (fault.id,)
    assert not report.changed


def test_a_healthy_run_has_no_finding() -> None:
    report = check(**healthy())
    assert report.ids == ()
    assert not report.changed
    assert not [result.reason for result in report.not_run if result.is_broken]
    assert len(report.passed) >= 30


def test_every_rule_has_a_planted_fault() -> None:
    ranks_or_targets = {"PF052", "PF053", "PF072"}  # in test_ranks.py and test_batches.py
    fine_tuning = {"PF054", "PF062"}  # with models of transformers
    assert {*object_rules()} - {fault.id for fault in FAULTS} == ranks_or_targets | fine_tuning
