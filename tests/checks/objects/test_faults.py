"""Each planted fault is found by its own check, and a healthy run has no finding."""

import pytest
from tests.kit.preflight.faults import FAULTS, Planted, healthy

from trimtab.checks.catalogue import RULES
from trimtab.checks.objects.catalogue import CHECKS
from trimtab.checks.objects.report import PreflightReport
from trimtab.checks.objects.run import preflight


def run_only(fault: Planted) -> PreflightReport:
    """A preflight with the one check: the benchmark runs all of them on each fault."""
    setup = fault.make()
    return preflight(**setup, off=({*CHECKS, *RULES}) - {fault.id})


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.id} {fault.what}" for fault in FAULTS])
def test_a_planted_fault_is_found(fault: Planted) -> None:
    report = run_only(fault)
    assert report.ids == (fault.id,)
    assert not report.changed


def test_a_healthy_run_has_no_finding() -> None:
    report = preflight(**healthy())
    assert report.ids == ()
    assert not report.changed
    assert not [result.reason for result in report.not_looked if result.is_broken]
    assert len(report.passed) >= 30


def test_at_least_thirty_faults_are_planted_and_every_test_has_one() -> None:
    assert len(FAULTS) >= 30
    ranks_or_shapes = {"PF052", "PF053", "PF072", "PF075"}  # in test_ranks.py and test_batches.py
    assert {*CHECKS} - {fault.id for fault in FAULTS} == ranks_or_shapes
