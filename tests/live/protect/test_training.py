"""Protection in real training: nothing happens to a healthy run, and a sick one stays healthy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.tiny import (
    EVERY_10,
    Setup,
    adamw,
    assert_same_bits,
    batches,
    journal_of,
    loss_of,
    train,
)
from tests.kit.tiny import make_model as make_tiny
from tests.live.protect.made_up import NAN, fused, give_gradients, make_model
from tests.live.protect.made_up import train as train_made_up
from tests.live.test_observe import per_block, per_block_inductor, whole, whole_inductor
from torch import optim
from torch._dynamo.utils import counters

import trimtab
from trimtab.core.config import Config, GateConfig
from trimtab.live.protect import rule
from trimtab.live.protect.rule import GateThresholds

# Said by torch's own compiler: about a tensor between two compiled blocks, and about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

SETUPS = {
    "AdamW fused": Setup(adamw(fused=True)),
    "AdamW": Setup(adamw()),
    "accumulation": Setup(adamw(fused=True), accumulate=3),
    "fp16, GradScaler": Setup(adamw(fused=True), autocast=torch.float16, initial_scale=1024.0),
}
COMPILED_SETUPS = {
    "aot whole": Setup(adamw(fused=True), compile=whole),
    "aot per block": Setup(adamw(fused=True), compile=per_block),
    "inductor whole": Setup(adamw(fused=True), compile=whole_inductor),
    "inductor per block": Setup(adamw(fused=True), compile=per_block_inductor),
}
SHORT = GateThresholds(window=16, min_history=8, min_history_extreme=8)
"""A gate that knows what is usual after few steps."""

NOT_COMPARED = {"clock", "step_seconds", "tokens_per_second", "discarded"}


def check_healthy(setup: Setup, folder: Path) -> None:
    """No bit differs from the bare run, no graph breaks, and the journal is that of observing."""
    plain = replace(setup, clip=None, steps=32)
    breaks = []
    outcomes = []
    for mode, run_dir in (("observe", None), ("protect", folder / "protect")):
        torch._dynamo.reset()
        counters.clear()
        outcomes.append(train(replace(plain, mode=mode), run_dir))
        breaks.append(sum(counters["graph_break"].values()))
    assert_same_bits(*outcomes)
    assert breaks == [0, 0]
    torch._dynamo.reset()
    train(replace(plain, mode="observe"), folder / "observe")
    protected, observed = (journal_of(folder / name) for name in ("protect", "observe"))
    assert not protected.column("discarded").values.any()
    assert set(protected.columns) - NOT_COMPARED == set(observed.columns) - NOT_COMPARED
    for name in set(observed.columns) - NOT_COMPARED:
        ours, theirs = protected.column(name), observed.column(name)
        np.testing.assert_array_equal(ours.present, theirs.present, err_msg=name)
        np.testing.assert_array_equal(ours.values, theirs.values, err_msg=name)


@pytest.mark.parametrize("name", some_of(SETUPS, "AdamW", "fp16, GradScaler"))
def test_a_healthy_run_is_not_touched(name: str, tmp_path: Path) -> None:
    check_healthy(SETUPS[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED_SETUPS)
def test_nor_is_a_compiled_one(name: str, tmp_path: Path) -> None:
    check_healthy(COMPILED_SETUPS[name], tmp_path)


def test_the_guards_clipping_trains_to_the_same_bits(tmp_path: Path) -> None:
    setup = Setup(adamw(fused=True), steps=60, clip=0.5)
    bare = train(setup, None)
    clipped = train(replace(setup, mode="protect", guard_clips=True), tmp_path)
    assert clipped.norms == bare.norms
    for ours, theirs in zip(clipped.parameters, bare.parameters, strict=True):
        assert torch.equal(ours, theirs)


def test_bad_batches_stay_out_are_told_and_the_run_ends_where_its_clean_twin_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = batches(160)
    bad = {110: 50.0, 111: NAN, 130: float("inf")}

    def run(folder: Path | None, skip: set[int]) -> tuple[Any, float]:
        model = make_tiny()
        model.dropout.p = 0.0  # a skipped batch would draw no mask
        optimizer = optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        guard = trimtab.watch(
            model,
            optimizer,
            run_dir=folder or "x",
            mode="protect",
            config=EVERY_10,
            enabled=folder is not None,
        )
        with guard:
            for number, batch in enumerate(data):
                if number in skip:
                    continue
                loss = loss_of(model, batch)
                factor = bad.get(number, 1.0)
                # Far more gradient than the loss explains.
                guard.record(loss=loss * min(factor, 1.5), tokens=batch.numel())
                (loss * factor).backward()
                optimizer.step()
                optimizer.zero_grad()
        return model, float(loss_of(model, data[0]).detach())

    protected, loss = run(tmp_path, set())
    twin, expected = run(None, set(bad))
    assert loss == expected
    for ours, theirs in zip(protected.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
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
    train_made_up(lambda parameters: optim.AdamW(parameters), 3, tmp_path)
    assert "AdamW now runs fused" in caplog.text
    events = journal_of(tmp_path).events
    assert [event.facts for event in events if event.kind == "optimizer promoted"] == [
        {"optimizer": "AdamW"}
    ]


def test_a_level_that_stays_is_let_through_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "THRESHOLDS", SHORT)
    model = make_model()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for number in range(80):
            give_gradients(model, number, 1.0 if number < 40 else 50.0)
            guard.record(loss=2.0 if number < 40 else 3.0)
            optimizer.step()
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
    gate = GateConfig(promote=promote)
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    moved = []
    with trimtab.watch(
        model, optimizer, run_dir=tmp_path, mode="protect", config=Config(gate=gate)
    ) as guard:
        for number in range(40):
            before = [p.detach().clone() for p in model.parameters()]
            give_gradients(model, 0, 8.0 if number in (35, 38) else 1.0)
            guard.record(loss=2.0)
            if number > 36:
                guard.clip_grad_norm_(0.5)
            optimizer.step()
            changes = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
            moved.append(float(torch.nn.utils.get_total_norm(changes)))
    events = [e for e in journal_of(tmp_path).events if e.kind == "gradient scaled down"]
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

    train_made_up(fused(optim.AdamW), 100, tmp_path / "first", on_step=keep)
    torch.save(states[0], tmp_path / "guard.pt")
    state = torch.load(tmp_path / "guard.pt", weights_only=True)

    for loads, discarded in ((True, [0]), (False, [])):
        model = make_model()
        optimizer = optim.AdamW(model.parameters(), fused=True)
        run_dir = tmp_path / str(loads)
        with trimtab.watch(
            model, optimizer, run_dir=run_dir, mode="protect", facts={"step": 100}
        ) as guard:
            if loads:
                guard.load_state_dict(state)
            give_gradients(model, 0, size=50.0)
            guard.record(loss=1.5)
            optimizer.step()
        found = journal_of(run_dir).column("discarded").values
        assert np.flatnonzero(found).tolist() == discarded

    with trimtab.watch(model, optimizer, run_dir=tmp_path / "observe") as guard:
        assert guard.state_dict().keys() == {"audit"}
        guard.load_state_dict(state)


def test_a_rare_class_is_learnt_as_without_the_gate(tmp_path: Path) -> None:
    def run(folder: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        optimizer = optim.AdamW(model.parameters(), lr=3e-3, fused=True)
        generator = torch.Generator().manual_seed(1)
        with trimtab.watch(
            model, optimizer, run_dir=folder or "x", mode="protect", enabled=folder is not None
        ) as guard:
            for _ in range(600):
                labels = (torch.rand(32, 1, generator=generator) < 0.002).float()
                points = torch.randn(32, 16, generator=generator) + 2 * labels
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points), labels)
                guard.record(loss=loss)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    protected, bare = run(tmp_path), run(None)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(protected, bare, strict=True))
    assert not journal_of(tmp_path).column("discarded").values.any()


def test_accelerate_prepares_what_we_protect(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = make_tiny()
    model, optimizer = accelerator.prepare(model, optim.AdamW(model.parameters(), lr=1e-2))
    moves = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for number, batch in enumerate(batches(6)):
            loss = loss_of(model, batch) * (NAN if number in (0, 3) else 1.0)
            guard.record(loss=loss)
            accelerator.backward(loss)
            guard.record(grad_norm=accelerator.clip_grad_norm_(model.parameters(), 0.1))
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            pairs = zip(model.parameters(), before, strict=True)
            moves.append(any(not torch.equal(p, b) for p, b in pairs))
    assert moves == [False, True, True, False, True, True]
