"""A bug of ours in the gate, planted in many places: training continues, and is watched still."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.tiny import Outcome, Setup, adamw, assert_same_bits, journal_of, train
from tests.live.protect.made_up import NAN, fused, give_gradients, make_model, plain
from tests.live.test_do_no_harm import FAILS_AT, failures, planted, train_with
from torch import optim

import trimtab

IN_THE_GATE = [
    "trimtab.live.protect.rule.Rule.judge",
    "trimtab.live.protect.rule.Rule.learn",
    "trimtab.live.protect.rule.Rule.report",
    "trimtab.live.protect.gate.Gate._prepare",
    "trimtab.live.protect.gate.Gate._settle",
    "trimtab.live.protect.discard.Discard.via_found_inf",
    "trimtab.live.protect.discard.Discard.undo",
    "trimtab.live.protect.fused_support.FusedSupport.reads_flag",
]
IN_THE_NUMBERS = [
    "trimtab.live.measure.step_meter.GradientNorm.squares",
    "trimtab.live.measure.step_meter.StepMeter.head",
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
    some_of(
        [*IN_THE_GATE, *IN_THE_NUMBERS, *ELSEWHERE],
        *(*IN_THE_GATE[::3], *IN_THE_NUMBERS[::3], *ELSEWHERE[::3]),
    ),
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
    elif place in IN_THE_NUMBERS:
        assert "steps aside" in caplog.text
        assert FAILS_AT - 3 <= len(block) <= 20


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_gate_outlives_every_other_part(place: str, tmp_path: Path) -> None:
    model = make_model()
    optimizer = fused(optim.AdamW)(list(model.parameters()))
    with (
        trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard,
        planted(place, lambda: True),
    ):
        for number in range(15):
            give_gradients(model, number)
            guard.record(loss=NAN if number == 12 else 1.0)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            pairs = zip(model.parameters(), before, strict=True)
            assert all(torch.equal(p, b) for p, b in pairs) is (number == 12)


@pytest.mark.parametrize(
    "place", ["Gate._prepare", "Discard.via_found_inf", "FusedSupport.reads_flag"]
)
def test_a_bad_step_stays_out_even_if_our_own_way_of_doing_it_fails(
    place: str, tmp_path: Path
) -> None:
    module = {"Gate": "gate", "Discard": "discard", "FusedSupport": "fused_support"}[
        place.split(".")[0]
    ]
    model = make_model()
    optimizer = fused(optim.AdamW)(list(model.parameters()))
    with (
        trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard,
        planted(f"trimtab.live.protect.{module}.{place}", lambda: True),
    ):
        give_gradients(model, 0)
        guard.record(loss=NAN)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.NAdam)])
def test_a_flag_whose_clearing_failed_is_cleared_by_the_next_record(
    make: Any, tmp_path: Path
) -> None:
    model = make_model()
    optimizer = make(list(model.parameters()))
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        with planted("trimtab.live.protect.discard.Discard.undo", lambda: True):
            give_gradients(model, 0)
            guard.record(loss=NAN)
            optimizer.step()
        before = [p.detach().clone() for p in model.parameters()]
        give_gradients(model, 1)
        guard.record(loss=1.0)
        optimizer.step()
        assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert "found_inf" not in vars(optimizer)
