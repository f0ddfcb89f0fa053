"""Harm is undone in every kind of loop; what people do on purpose is left alone."""

import contextlib
import copy
import pickle
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import one_of_each, some_of
from tests.kit.tiny import journal_of
from tests.kit.undo import (
    KINDS,
    Edit,
    Loop,
    flip_bit,
    flip_moment,
    flip_weight,
    lose_weight,
    refusals,
    same,
    train,
    undos,
)
from tests.kit.user_loop import events_of, take_step, watching
from torch import nn, optim

import trimtab
from trimtab.core.causes import Cause
from trimtab.core.config import Config, RecoverConfig
from trimtab.core.errors import RestoreError
from trimtab.core.events import UNDO_OUTCOME
from trimtab.core.text import digits
from trimtab.live import arithmetic
from trimtab.live.recover.undo_plan import MAX_WAIT
from trimtab.live.recover.undo_report import is_at_level
from trimtab.report.wording import event_text

AT, STEPS, LAG = 25, 40, 2


LOOPS = ("plain", "accumulation", "closure", "scaler", "two optimizers", "guard.steps")
"""In CI the other kinds, which are optimizers, are tried with a flipped bit."""


@pytest.mark.parametrize("name", some_of(KINDS, *LOOPS))
def test_a_healthy_run_has_the_bits_of_protect(name: str, tmp_path: Path) -> None:
    protected = train(KINDS[name], tmp_path / "protect", "protect")
    recovering = train(KINDS[name], tmp_path / "recover", "recover")
    assert recovering.losses == protected.losses
    assert all(map(same, protected.states, recovering.states))
    assert undos(tmp_path / "recover") == []


def lose_moment(loop: Loop) -> None:
    next(iter(loop.optimizers[0].state.values()))["exp_avg"].data[1, 1] = torch.nan


def lose_squares(loop: Loop) -> None:
    for state in loop.optimizers[0].state.values():
        state["exp_avg_sq"].data.zero_()


HARM: dict[Callable[[Loop], None], str] = {
    flip_weight: "one bit of embed.weight flipped in memory",
    flip_moment: "one bit of exp_avg of embed.weight flipped in memory",
    lose_weight: "not finite",
    lose_moment: "not finite",
    lose_squares: "beyond what any gradients",
}
HARMED = (
    *product(KINDS, [flip_weight], [False]),
    *product(["plain", "scaler", "closure", "sgd", "two optimizers"], [lose_weight], [False]),
    *product(["plain", "fused", "two optimizers"], [flip_weight, flip_moment], [True]),
    *product(["plain"], [flip_moment, lose_moment, lose_squares], [False]),
)
"""Kinds of loops, what harms them, and whether bits are summed as on an accelerator."""


@pytest.mark.parametrize(
    ("name", "harm", "on_device"),
    some_of(
        HARMED,
        *product(["scaler", *KINDS.keys() - {*LOOPS}], [flip_weight], [False]),
        *(("closure", lose_weight, False), ("sgd", lose_weight, False)),
        *product(["plain"], [flip_moment, lose_moment, lose_squares], [False]),
        *(("two optimizers", flip_weight, True), ("fused", flip_moment, True)),
    ),
)
def test_harm_is_undone_to_the_bit(
    name: str, harm: Callable[[Loop], None], on_device: bool, tmp_path: Path
) -> None:
    path = arithmetic.device_path() if on_device else contextlib.nullcontext()
    with path:
        loop = train(KINDS[name], tmp_path, "recover", edits={AT: harm})
    (undo,) = undos(tmp_path)
    assert HARM[harm] in str(undo.facts["why"])
    lost = int(undo.facts["updates_lost"])
    assert lost <= (20 if harm in (lose_weight, lose_moment) else 10 + LAG)
    if harm not in (
        lose_weight,
        lose_moment,
    ):  # discarded steps are no updates
        # The state after the step that was not taken is that of an earlier step, in every bit.
        assert same(loop.states[undo.step], loop.states[undo.step - lost - 1])
    assert np.isfinite(loop.losses[-1])
    assert all(torch.isfinite(p).all() for p in loop.model.parameters())
    # The rest of the loop has noticed nothing.
    assert len(loop.losses) == loop.scheduler.last_epoch == STEPS
    assert loop.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


# What people do on purpose, not announced.


def reset_head(loop: Any) -> None:
    nn.init.normal_(loop.model.head.weight)


def reset_head_data(loop: Any) -> None:
    loop.model.head.weight.data.normal_()


def every_weight(loop: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.copy_(change(parameter))


def swap(loop: Any) -> None:
    for parameter in loop.model.parameters():
        parameter.data = parameter.data * 0.99


def set_options(loop: Loop, **options: float) -> None:
    for group in loop.optimizers[0].param_groups:
        group.update(options)


PURPOSES: dict[str, Callable[[Any], Any]] = {
    "reset head": reset_head,
    "reset head by data": reset_head_data,
    "zero padding": lambda loop: loop.model.embed.weight.data[0].zero_(),
    "set one": lambda loop: loop.model.head.weight.data[3, 3].fill_(10.0),
    "halve one": lambda loop: loop.model.head.weight.data[3, 3].mul_(0.5),
    "halve a column": lambda loop: loop.model.head.weight.data[:, 4].mul_(0.5),
    "double two gates": lambda loop: loop.model.blocks[0].norm.weight.data[:3:2].mul_(2),
    "forget": lambda loop: loop.optimizers[0].state.clear(),
    "faster": lambda loop: set_options(loop, lr=0.1),
    "decay": lambda loop: set_options(loop, weight_decay=1.0),
    "freeze": lambda loop: loop.model.embed.requires_grad_(False),
    "shrink": lambda loop: every_weight(loop, lambda p: p * 0.5 + torch.randn_like(p) * 0.01),
    "prune": lambda loop: every_weight(loop, lambda p: p * (p.abs() > 0.05)),
    "swap": swap,
    "double": lambda loop: loop.model.head.weight.data.mul_(2),
    "larger gradients": lambda loop: [
        p.grad.mul_(30) for p in loop.model.parameters() if p.grad is not None
    ],
}


@pytest.mark.parametrize(
    ("purpose", "often", "with_batch_loss"),
    one_of_each(product(PURPOSES, [False, True], [False, True])),
)
def test_nothing_that_people_do_is_undone(
    purpose: str, often: bool, with_batch_loss: bool, tmp_path: Path
) -> None:
    edits = dict.fromkeys(range(AT, STEPS) if often else [AT], PURPOSES[purpose])
    train(KINDS["plain"], tmp_path, "recover", edits=edits, with_batch_loss=with_batch_loss)
    assert undos(tmp_path) == []


# Limits.


def test_trouble_that_returns_is_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    edits = dict.fromkeys((25, 45), lose_squares)
    train(KINDS["plain"], tmp_path, "recover", steps=70, edits=edits)
    assert len(undos(tmp_path)) == 1
    assert len(refusals(tmp_path)) == 1
    assert "so it has a cause" in caplog.text


def test_an_undo_can_be_asked_for(tmp_path: Path) -> None:
    edits = {AT: lambda loop: loop.guard.undo(12)}
    loop = train(KINDS["plain"], tmp_path, "recover", edits=edits)
    (undo,) = undos(tmp_path)
    assert 12 <= int(undo.facts["updates_lost"]) <= 24
    assert any(same(loop.states[AT + LAG], old) for old in loop.states[:AT])
    assert trimtab.diagnose(tmp_path).incidents == ()  # it was done on purpose


def test_without_memory_nothing_is_undone_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(recover=RecoverConfig(memory_share=1e-12))
    loop = train(KINDS["plain"], tmp_path, "recover", edits={AT: flip_weight}, config=config)
    assert undos(tmp_path) == []
    assert "two snapshots need" in caplog.text
    assert len(loop.losses) == STEPS


def fail(*given: Any, **named: Any) -> Any:
    raise OSError("planted")


def test_a_restore_that_fails_half_way_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.state.snapshots.OtherState.restore", fail)
    with pytest.raises(RestoreError, match="restart from the last checkpoint"):
        train(KINDS["plain"], tmp_path, "recover", edits={AT: flip_weight})


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("trimtab.live.recover.audit.StateAudit.audit", "planted"),
        ("trimtab.live.watch.Snapshots", "could not start and steps aside"),
    ],
)
def test_a_bug_of_ours_ends_undo_and_not_the_run(
    place: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(place, fail)
    loop = train(KINDS["plain"], tmp_path, "recover")
    assert len(loop.losses) == STEPS
    assert said in caplog.text
    assert not loop.optimizers[0]._optimizer_step_pre_hooks


def test_a_gan_that_uses_a_graph_over_both_steps(tmp_path: Path) -> None:
    """As in PyTorch's tutorial: the fake batch is made once, before the first optimizer moves."""
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
    judge = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(), nn.Linear(32, 1))
    both = nn.ModuleList([maker, judge])
    first = optim.Adam(judge.parameters(), lr=1e-3)
    second = optim.Adam(maker.parameters(), lr=1e-3)
    with trimtab.watch(both, [first, second], run_dir=tmp_path, mode="recover") as guard:
        for number in range(STEPS):
            fake = maker(torch.randn(16, 4))
            real = torch.randn(16, 8) + 1
            loss = judge(fake.detach()).mean() - judge(real).mean()
            first.zero_grad()
            loss.backward()
            guard.record(loss=loss)
            if number == AT:
                flip_bit(next(maker.parameters()), 29)
            first.step()
            second.zero_grad()
            (-judge(fake).mean()).backward()
            second.step()
    (undo,) = undos(tmp_path)
    assert undo.facts["tensor"] == "0.0.weight"
    assert all(torch.isfinite(p).all() for p in both.parameters())


def test_a_clamp_of_weights_in_bf16_is_no_flipped_bit(tmp_path: Path) -> None:
    """It moves a weight by one unit in the last place: a power of two."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(torch.bfloat16)
    with watching(tmp_path, "recover", model=model) as run:
        run.optimizer.param_groups[0]["lr"] = 3e-3
        for _ in range(90):
            inputs = torch.randn(16, 16, dtype=torch.bfloat16)
            loss = (model(inputs) - 3 * inputs[:, :4]).square().mean()
            take_step(run.guard, run.optimizer, loss)
            for parameter in model.parameters():
                parameter.data.clamp_(-0.4, 0.4)
    assert undos(tmp_path) == []


def test_an_undo_and_its_outcome_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From where, to where, what is lost, why and how sure; later whether it has helped."""
    caplog.set_level("INFO")
    train(KINDS["plain"], tmp_path, "recover", steps=110, edits={60: flip_weight})
    (undo,) = undos(tmp_path)
    facts = undo.facts
    assert facts["to_step"] == undo.step - facts["updates_lost"]
    assert "certain" in facts["how_sure"]
    line = next(r.getMessage() for r in caplog.records if "undone to step" in r.getMessage())
    assert f"step {undo.step}: undone to step {facts['to_step']}" in line
    assert "one bit of embed.weight flipped in memory (certain" in line
    (outcome,) = events_of(tmp_path, UNDO_OUTCOME)
    assert outcome.facts["helped"] is True
    assert outcome.facts["undone_at"] == undo.step
    words = (
        f"the loss is {digits(outcome.facts['loss_after'])}; it was "
        f"{digits(outcome.facts['loss_before_fault'])} before the fault and "
        f"{digits(outcome.facts['loss_before'])} when the restored state was saved"
    )
    assert f"the undo at step {undo.step} works: {words}" in caplog.text
    assert event_text(outcome).endswith(f"it works: {words}")
    losses = journal_of(tmp_path).column("loss").values
    assert outcome.facts["loss_before_fault"] == pytest.approx(np.median(losses[52:60]), rel=1e-5)
    (incident,) = trimtab.diagnose(tmp_path).incidents  # so that there is a post-mortem
    assert "weights or optimizer harmed" in incident.incident.symptoms
    assert incident.cause is Cause.BIT_FLIP
    assert incident.action.kind == "wait"


def test_an_outcome_is_judged_by_the_losses() -> None:
    before = [2.0 + 0.01 * (at % 3) for at in range(32)]
    assert is_at_level(before, [2.01] * 20)
    assert is_at_level(before, [1.5] * 20)
    assert is_at_level(before, [2.6] * 20) is False
    assert is_at_level(before, [float("nan")] * 20) is False
    assert is_at_level(before[:3], [2.0] * 20) is None


def test_a_watched_scaler_can_be_copied(tmp_path: Path) -> None:
    """And the copy steps as its class does, without the guard."""

    def after(loop: Loop, number: int) -> None:
        if number == 5:
            copies = [copy.deepcopy(loop.scaler), pickle.loads(pickle.dumps(loop.scaler))]
            assert [one.step.__func__ for one in copies] == [torch.amp.GradScaler.step] * 2
            assert [one.step.__self__ for one in copies] == copies

    loop = train(KINDS["scaler"], tmp_path, "recover", steps=10, on_step=after)
    assert "step" not in vars(loop.scaler)


def test_a_rank_whose_snapshots_have_failed_still_hears_what_the_others_do(tmp_path: Path) -> None:
    """The first rank may end the run: one that does not hear of it would wait for the others."""
    model = nn.Linear(2, 2)
    with watching(tmp_path, "recover", model=model) as run:
        monitor: Any = run.guard._monitor
        heard: list[Any] = []
        receive = monitor.state_guard.receive

        def hear(*args: Any, **facts: Any) -> None:
            heard.append(args)
            receive(*args, **facts)

        monitor.state_guard.receive = hear
        monitor.shields.recovery.catch("planted", RuntimeError("planted"))
        for _ in range(6):
            take_step(run.guard, run.optimizer, model(torch.ones(1, 2)).square().mean())
    assert len(heard) == 4  # of 6 exchanges, two of them are on their way


# What the user has done on purpose since the snapshot is not taken back.


def project(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.mul_(0.999)


@pytest.mark.parametrize("edit", [reset_head, reset_head_data])
def test_an_undo_returns_to_a_snapshot_after_the_edit(edit: Any, tmp_path: Path) -> None:
    """Snapshots are 10 updates apart: the one of update 20 is from before the edit."""
    loop = train(KINDS["plain"], tmp_path, "recover", edits={22: edit, 29: flip_weight})
    (undo,) = undos(tmp_path)
    restored = loop.states[undo.step]
    assert any(same(restored, state) for state in loop.states[22:29])


def grow(loop: Loop) -> None:
    extra = nn.Parameter(torch.zeros(3))
    loop.optimizers[0].add_param_group({"params": [extra], "lr": 1e-3})


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (reset_head, "your code has written weights"),
        (reset_head_data, "your code has written weights"),
        (grow, "no snapshot"),
    ],
)
def test_an_edit_without_a_snapshot_since_is_not_lost(edit: Any, why: str, tmp_path: Path) -> None:
    loop = train(KINDS["plain"], tmp_path, "recover", edits={24: edit, 25: flip_weight})
    assert undos(tmp_path) == []
    (refusal,) = refusals(tmp_path)
    assert why in str(refusal.facts["because"])
    assert len(loop.losses) == STEPS


@pytest.mark.parametrize(
    "edits",
    [
        {25: lose_squares},  # past torch: it is no edit
        {24: reset_head, 25: lose_weight},  # the run would be lost otherwise
        # Its tensors are not compared, as torch counts them; what is not finite is undone.
        {**dict.fromkeys(range(STEPS), project), 25: lose_weight},
    ],
)
def test_no_edit_is_in_the_way_of_what_must_be_undone(
    edits: dict[int, Edit], tmp_path: Path
) -> None:
    loop = train(KINDS["plain"], tmp_path, "recover", edits=edits)
    assert len(undos(tmp_path)) == 1
    assert all(torch.isfinite(p).all() for p in loop.model.parameters())


def test_an_optimizer_that_has_ended_does_not_hold_up_the_other(tmp_path: Path) -> None:
    """First one model is trained, then the other; both were given to `watch`."""
    torch.manual_seed(0)
    one, two = nn.Linear(8, 16), nn.Linear(16, 4)
    first = optim.AdamW(one.parameters(), lr=1e-2)
    second = optim.AdamW(two.parameters(), lr=1e-2)
    sums = []
    both = nn.Sequential(one, two)
    with trimtab.watch(both, [first, second], run_dir=tmp_path, mode="recover") as guard:
        for number in range(140):
            loss = both(torch.randn(8, 8)).square().mean()
            loss.backward()
            guard.record(loss=loss)
            if number == 60:
                flip_bit(two.weight, 27)
            (first if number < 30 else second).step()
            both.zero_grad()
            sums.append(float(two.weight.detach().sum()))
    (undo,) = undos(tmp_path)
    assert undo.step <= 60 + 4 + MAX_WAIT  # it is waited for, and nothing harmed is trained
    assert int(undo.facts["updates_lost"]) <= 12
    assert len(set(sums[-20:])) == 20  # it trains again
