"""Protection in real training: nothing happens to a healthy run, and a sick one stays healthy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import EVERY_10, batches, journal_of, loss_of
from tests.kit.tiny import make_model as make_tiny
from tests.kit.user_loop import NAN, are_equal, events_of, take_step, watching, weights
from tests.live.protect.made_up import fused, give_gradients, plain, protecting, train
from torch import optim
from torch.nn import functional as F

from trimtab.core.config import Config, GateConfig
from trimtab.live.protect import rule
from trimtab.live.protect.rule import GateThresholds

SHORT = GateThresholds(window=16, min_history=8, min_history_extreme=8)
"""A gate that knows what is usual after few steps."""


def test_bad_batches_stay_out_are_told_and_the_run_ends_where_its_clean_twin_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = batches(160)
    bad = {110: 50.0, 111: NAN, 130: float("inf")}

    ends = []
    for enabled in (True, False):
        model = make_tiny()
        model.dropout.p = 0.0  # a skipped batch would draw no mask
        with watching(tmp_path, "protect", model=model, config=EVERY_10, enabled=enabled) as run:
            for number, batch in enumerate(data):
                if enabled or number not in bad:
                    loss = loss_of(model, batch)
                    factor = bad.get(number, 1.0)
                    # Far more gradient than the loss explains.
                    run.guard.record(loss=loss * min(factor, 1.5), tokens=batch.numel())
                    (loss * factor).backward()
                    run.optimizer.step()
                    run.optimizer.zero_grad()
        ends.append(weights(model))
    assert are_equal(*ends)
    block = journal_of(tmp_path)
    events = [event for event in block.events if event.kind == "step discarded"]
    assert [event.step for event in events] == list(bad)
    assert events[0].facts["reasons"] == ["loss and gradient norm together"]
    assert events[1].facts["reasons"] == ["loss not finite", "grad norm not finite"]
    assert float(str(events[0].facts["usual_grad_norm"])) < float(str(events[0].facts["grad_norm"]))
    assert "step 110 discarded, loss and gradient norm together" in caplog.text
    # The update that did not happen has no size.
    assert not block.column("update_norm").present[110]
    assert block.column("update_norm").present[120]


@pytest.mark.usefixtures("device_path")
def test_a_promotion_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(plain(optim.AdamW), 3, tmp_path)
    assert "AdamW now runs fused" in caplog.text
    events = journal_of(tmp_path).events
    assert [event.facts for event in events if event.kind == "optimizer promoted"] == [
        {"optimizer": "AdamW"}
    ]


def test_a_level_that_stays_is_let_through_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "THRESHOLDS", SHORT)
    with protecting(tmp_path, fused(optim.AdamW)) as run:
        for number in range(80):
            is_early = number < 40
            run.take(number, 2.0 if is_early else 3.0, size=1.0 if is_early else 50.0)
    block = journal_of(tmp_path)
    assert np.flatnonzero(block.column("discarded").values).tolist() == [40, 41, 42, 43, 44]
    kinds = {event.kind: event.step for event in reversed(block.events)}
    assert kinds["gate armed"] == 16
    assert kinds["gate lets steps through"] == 45
    assert "loss and gradient norm stay far above the usual" in caplog.text


@pytest.mark.parametrize("promote", [True, False])
@pytest.mark.usefixtures("device_path")
def test_excess_is_scaled_down_in_the_update_or_by_hand(
    promote: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rule, "THRESHOLDS", SHORT)
    config = Config(gate=GateConfig(promote=promote))
    moved = []
    with protecting(tmp_path, plain(optim.SGD, lr=1.0), config=config) as run:
        for number in range(40):
            before = weights(run.model)
            size, clip = 8.0 if number in (35, 38) else 1.0, 0.5 if number > 36 else None
            give_gradients(run.model, 0, size)
            run.guard.record(loss=2.0)
            if clip is not None:
                run.guard.clip_grad_norm_(clip)
            run.optimizer.step()
            changes = [p.detach() - b for p, b in zip(run.model.parameters(), before, strict=True)]
            moved.append(float(torch.nn.utils.get_total_norm(changes)))
    events = events_of(tmp_path, "gradient scaled down")
    assert [event.step for event in events] == [35, 38]
    assert float(str(events[0].facts["by"])) == pytest.approx(8.0, rel=1e-4)
    assert "step 35 applied with its gradient divided by 8" in caplog.text
    assert moved[35] == pytest.approx(moved[34], rel=1e-4)
    # What was clipped below the usual anyway is not scaled down twice.
    assert moved[37:] == pytest.approx([0.5] * 3, rel=1e-4)


def test_what_the_gate_has_learnt_is_saved_and_loaded(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = []

    def keep(number: int, guard: Any, optimizer: Any) -> None:
        if number == 99:
            states.append(guard.state_dict())

    train(fused(optim.AdamW), 100, tmp_path / "first", on_step=keep)
    torch.save(states[0], tmp_path / "guard.pt")
    state = torch.load(tmp_path / "guard.pt", weights_only=True)

    for loads, discarded in ((True, [0]), (False, [])):
        run_dir = tmp_path / str(loads)
        with protecting(run_dir, fused(optim.AdamW), facts={"step": 100}) as run:
            if loads:
                run.guard.load_state_dict(state)
            run.take(0, 1.5, size=50.0)
        found = journal_of(run_dir).column("discarded").values
        assert np.flatnonzero(found).tolist() == discarded

    with protecting(tmp_path / "observe", fused(optim.AdamW), "observe") as run:
        assert run.guard.state_dict().keys() == {"audit"}
        run.guard.load_state_dict(state)


def test_a_rare_class_is_learnt_as_without_the_gate(tmp_path: Path) -> None:
    ends = []
    for enabled in (True, False):
        torch.manual_seed(0)
        layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        model = torch.nn.Sequential(*layers)
        generator = torch.Generator().manual_seed(1)
        with watching(tmp_path, "protect", model=model, enabled=enabled) as run:
            for _ in range(600):
                labels = (torch.rand(32, 1, generator=generator) < 0.002).float()
                points = torch.randn(32, 16, generator=generator) + 2 * labels
                loss = F.binary_cross_entropy_with_logits(model(points), labels)
                take_step(run.guard, run.optimizer, loss)
        ends.append(weights(model))
    assert are_equal(*ends)
    assert not journal_of(tmp_path).column("discarded").values.any()
