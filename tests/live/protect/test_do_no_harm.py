"""A bug of ours in the gate, planted in many places: training goes on, and is watched still."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.protect.made_up import NAN, fused, give_gradients, make_model, plain
from tests.live.test_do_no_harm import FAILS_AT, failures, planted, train_with
from tests.live.tiny import Outcome, Setup, adamw, assert_same_bits, journal_of, train
from torch import optim

import trimtab

IN_THE_GATE = [
    "trimtab.live.protect.rule.Rule.judge",
    "trimtab.live.protect.rule.Rule.learn",
    "trimtab.live.protect.baseline.Baseline.update",
    "trimtab.live.protect.budget.Budget.update",
    "trimtab.live.protect.gate.Gate._report",
    "trimtab.live.protect.gate.Gate._prepare",
    "trimtab.live.protect.gate.Gate.clear",
    "trimtab.live.protect.discard.Discard.by_flag",
    "trimtab.live.protect.discard.Discard.undo",
    "trimtab.live.protect.forms.Forms.reads_flag",
    "trimtab.live.protect.folded_clip.FoldedClip.done",
]
IN_THE_GUARD = [
    "trimtab.live.measure.activations._Writer._write",
    "trimtab.live.measure.sensors.Sensors.see_gradient",
    "trimtab.live.measure.sensors.Sensors.measure_head",
    "trimtab.live.measure.sensors.Sensors.own_loss",
    "trimtab.live.measure.sensors.Sensors.measure_rest",
    "trimtab.live.protect.words.GateWords.tell",
    "trimtab.live.loop.watcher.Watcher._fill",
]
SETUP = Setup(adamw(fused=True), steps=30, clip=None, mode="protect")


@pytest.fixture(scope="module")
def bare() -> Outcome:
    return train(SETUP, None)


@pytest.mark.parametrize("place", [*IN_THE_GATE, *IN_THE_GUARD])
def test_training_goes_on_and_the_journal_tells_it(
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
        assert FAILS_AT - 3 <= len(block) <= 20  # telemetry fails at its next turn


@pytest.mark.parametrize("place", ["Gate._prepare", "Discard.by_flag", "Forms.reads_flag"])
def test_a_bad_step_stays_out_even_if_our_own_way_of_doing_it_fails(
    place: str, tmp_path: Path
) -> None:
    module = {"Gate": "gate", "Discard": "discard", "Forms": "forms"}[place.split(".")[0]]
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
