"""A bug of ours in the gate, planted in many places: training continues, and is watched still."""

from pathlib import Path
from typing import Any

import pytest
from tests.kit.cases import some_of
from tests.kit.tiny import Outcome, Setup, adamw, assert_same_bits, journal_of, train
from tests.kit.user_loop import NAN
from tests.live.protect.made_up import fused, give_gradients, plain, protecting
from tests.live.test_do_no_harm import FAILS_AT, failures, planted, train_with
from torch import optim

GATE = "trimtab.live.protect.gate.Gate."
DISCARD = "trimtab.live.protect.discard.Discard."
READS_FLAG = "trimtab.live.protect.fused_support.FusedSupport.reads_flag"
IN_THE_GATE = [
    *(f"trimtab.live.protect.rule.Rule.{name}" for name in ("judge", "learn", "report")),
    *(f"{GATE}_prepare", f"{GATE}_settle"),
    *(f"{DISCARD}via_found_inf", f"{DISCARD}undo", READS_FLAG),
]
IN_THE_NUMBERS = [
    "trimtab.live.measure.step_meter.GradientNorm.squares",
    "trimtab.live.measure.step_meter.StepMeter.step_sums",
    "trimtab.live.measure.step_meter.StepMeter.local_loss",
]
ELSEWHERE = [
    "trimtab.live.measure.activations._RmsHook._write",
    "trimtab.live.measure.telemetry.Telemetry.finish",
    "trimtab.live.protect.gate_reporter.GateReporter.report",
    "trimtab.live.loop.step_facts.StepFacts.fill",
]
"""What fails here leaves the gate working."""

SETUP = Setup(adamw(fused=True), steps=30, clip=None, mode="protect")


@pytest.fixture(scope="module")
def bare() -> Outcome:
    return train(SETUP, None)


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize(
    "place",
    some_of([*IN_THE_GATE, *IN_THE_NUMBERS], *IN_THE_GATE[::3], *IN_THE_NUMBERS[::3]),
)
def test_training_goes_on_and_the_failure_is_reported(
    place: str, bare: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert_same_bits(bare, train_with(place, tmp_path, SETUP))
    assert len(failures(tmp_path)) == 1
    block = journal_of(tmp_path)
    if place in IN_THE_GATE:
        assert "protects no longer" in caplog.text
        assert len(block) == 30  # and watches on
        assert block.column("param_norm").present[20]
    else:
        assert "steps aside" in caplog.text
        assert FAILS_AT - 3 <= len(block) <= 20


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_gate_outlives_every_other_part(place: str, tmp_path: Path) -> None:
    with protecting(tmp_path, fused(optim.AdamW)) as run, planted(place, lambda: True):
        for number in range(15):
            assert run.take(number, NAN if number == 12 else 1.0) is (number != 12)


@pytest.mark.parametrize("place", [f"{GATE}_prepare", f"{DISCARD}via_found_inf", READS_FLAG])
def test_a_bad_step_stays_out_even_if_our_own_way_of_doing_it_fails(
    place: str, tmp_path: Path
) -> None:
    with protecting(tmp_path, fused(optim.AdamW)) as run, planted(place, lambda: True):
        assert not run.take(0, NAN)
        assert all(p.grad is not None for p in run.model.parameters())


@pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.NAdam)])
def test_a_flag_whose_clearing_failed_is_cleared_by_the_next_record(
    make: Any, tmp_path: Path
) -> None:
    with protecting(tmp_path, make) as run:
        with planted(f"{DISCARD}undo", lambda: True):
            give_gradients(run.model, 0)
            run.guard.record(loss=NAN)
            run.optimizer.step()
        assert run.take(1)
        assert "found_inf" not in vars(run.optimizer)
