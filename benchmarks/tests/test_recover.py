"""The bench of recovery: its cases, its bounds."""

import math
from typing import Any

import pytest
from benchmarks.recover.arms import Arm
from benchmarks.recover.cases import FAULTS, HEALTHY
from benchmarks.recover.figures import fault_row, upper_bound

from trimtab.lab.trainer.run_clock import Clock


def test_cases_have_different_names_and_say_what_they_go_by() -> None:
    names = [case.name for case in (*FAULTS, *HEALTHY)]
    assert len(names) == len(set(names))
    clocks = {case.name: case.clock for case in FAULTS}
    assert clocks["F02"] is Clock.DATA
    assert clocks["F05 tick"] is Clock.TICK
    assert clocks["F05 step"] is Clock.STEP
    made = next(case for case in FAULTS if case.name == "F05 tick").intervention(0)
    assert made is not None
    assert made.goes_by is Clock.TICK


def test_the_bound_is_one_sided_and_unknown_for_a_lost_run() -> None:
    assert upper_bound([0.0, 0.0, 0.0]) == 0.0
    assert upper_bound([0.01, 0.03]) == pytest.approx(0.02 + 6.314 * 0.01)
    assert math.isnan(upper_bound([0.0, math.nan]))


def test_a_row_compares_with_the_clean_twin() -> None:
    case = next(case for case in FAULTS if case.name == "F13w")
    run = {"loss": 3.0, "steps_lost": 12, "acts": ["222 restore"], "ended": "done"}
    outcomes = {
        (name, arm, seed): run | {"loss": loss}
        for seed in (0, 1)
        for name, arm, loss in (
            ("twin-plain", Arm.CLEAN, 3.0),
            ("F13w", Arm.UNGUARDED, 5.0),
            ("F13w", Arm.PROTECT, math.nan),
            ("F13w", Arm.BY_HAND, 3.1),
            ("F13w", Arm.RECOVER, 3.0),
        )
    }
    row = fault_row(outcomes, case, [0, 1])
    assert row[:2] == ["F13w", Clock.TICK]
    assert row[2:6] == ["+2.000 [2]", "lost 2/2", "+0.100 [2]", "+0.000 [2]"]
    assert row[6:] == ["+0.000", "2/2", "12", "restore 2", "yes"]


def test_a_late_case_is_met_by_the_act_or_the_end_that_is_expected() -> None:
    case = next(case for case in FAULTS if case.name == "F22")
    run: dict[str, Any] = {"steps_lost": 12, "acts": ["222 restore", "230 stop"]}
    outcomes = {
        ("F22", Arm.RECOVER, 0): run | {"ended": "stopped 76 at 230: loss", "loss": math.nan},
        ("F22", Arm.RECOVER, 1): run | {"ended": "done", "loss": 3.0},
        **{("twin-plain", Arm.CLEAN, seed): run | {"loss": 3.0} for seed in (0, 1)},
    }
    assert fault_row(outcomes, case, [0])[-1] == "yes: stopped 76 1/1"
    assert fault_row(outcomes, case, [0, 1])[-1] == "NO: stopped 76 1/2"
