"""Loops with more than one optimizer: each update is a step of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import batches, journal_of, loss_of, make_model, muon_and_adamw
from tests.kit.user_loop import (
    NAN,
    column,
    events_of,
    is_finite,
    losses,
    poison,
    take_step,
    warnings_of,
)
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab.core.errors import TrimtabError


def make_pair() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    pair = nn.ModuleDict({"g": nn.Linear(8, 2), "d": nn.Linear(2, 1)})
    of_d, of_g = (torch.optim.Adam(pair[name].parameters()) for name in "dg")
    return pair, of_d, of_g


@pytest.mark.parametrize(("mode", "bad"), [("observe", None), ("protect", 12)])
def test_optimizers_that_take_turns_make_a_step_each(
    mode: str, bad: int | None, tmp_path: Path
) -> None:
    """A GAN; the discriminator's gradient is NaN once."""
    pair, of_d, of_g = make_pair()
    recorded = []
    with trimtab.watch(pair, [of_d, of_g], run_dir=tmp_path, mode=mode) as guard:
        for turn in range(20):
            fake = pair["g"](torch.randn(16, 8))
            real = pair["d"](torch.randn(16, 2))
            loss = F.softplus(-real).mean() + F.softplus(pair["d"](fake.detach())).mean()
            of_d.zero_grad()
            recorded.append(take_step(guard, of_d, loss, spoils=turn == bad).item())
            loss = F.softplus(-pair["d"](fake)).mean()
            recorded.append(take_step(guard, of_g, loss).item())
    assert events_of(tmp_path, "step not applied") == []
    assert is_finite(pair)
    assert losses(tmp_path) == pytest.approx(recorded, rel=1e-5)
    assert len(events_of(tmp_path, "step discarded")) == (bad is not None)
    assert np.nansum(column(tmp_path, "discarded")) == (bad is not None)


def test_each_of_several_critic_steps_is_judged_by_its_own_gradients(tmp_path: Path) -> None:
    pair, of_d, of_g = make_pair()
    with trimtab.watch(pair, [of_d, of_g], run_dir=tmp_path, mode="protect") as guard:
        for turn in range(10):
            for repeat in range(3):
                loss = pair["d"](torch.randn(16, 2)).square().mean()
                if repeat == 0:
                    guard.record(loss=loss)
                of_d.zero_grad()
                loss.backward()
                if (turn, repeat) == (5, 1):
                    poison(of_d)
                of_d.step()
            loss = -pair["d"](pair["g"](torch.randn(16, 8))).mean()
            of_g.zero_grad()
            loss.backward()
            of_g.step()
    assert is_finite(pair)


def test_optimizers_that_step_together_stay_one_step_each(tmp_path: Path) -> None:
    """One norm and one decision of both, and the learning rate of each."""
    model = make_model()
    optimizers = muon_and_adamw(model)
    optimizers[0].param_groups[0]["lr"], optimizers[1].param_groups[0]["lr"] = 0.02, 0.003
    norms = []
    with trimtab.watch(model, optimizers, run_dir=tmp_path, mode="protect") as guard:
        for step, batch in enumerate(batches(15)):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            loss.backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            norms.append(float(torch.nn.utils.get_total_norm(grads)))
            if step == 10:
                poison(optimizers[1])
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert is_finite(model)
    block = journal_of(tmp_path)
    assert len(block) == 15
    assert len(events_of(tmp_path, "step discarded")) == 1
    np.testing.assert_allclose(block.column("grad_norm").values[:10], norms[:10], rtol=1e-5)
    rates = {
        round(float(signal.values[2]), 6)
        for name, signal in block.columns.items()
        if name == "lr" or name.startswith(("lr/", "lr."))
    }
    assert {0.02, 0.003} <= rates


def test_an_optimizer_that_rests_does_not_swallow_the_step(tmp_path: Path) -> None:
    model = make_model()
    optimizers = muon_and_adamw(model)
    with trimtab.watch(model, optimizers, run_dir=tmp_path) as guard:
        for batch in batches(6):
            take_step(guard, optimizers[1], loss_of(model, batch))
            model.zero_grad()
    assert len(journal_of(tmp_path)) == 6


def test_a_step_inside_backward_is_protected_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizers = {p: torch.optim.AdamW([p], lr=1e-2) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    try:
        guard = trimtab.watch(model, list(optimizers.values()), run_dir=tmp_path, mode="protect")
    except TrimtabError as error:
        refusal = str(error)
        assert "backward" in refusal
        return
    with guard:
        for step, batch in enumerate(batches(20)):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            if step == 12:  # the NaN arises in the embedding's gradient, the last to be computed
                handle = model.embed.register_forward_hook(spoil_gradient)
                loss = loss_of(model, batch)
                handle.remove()
            loss.backward()
    if any("backward" in warning for warning in warnings_of(caplog)):
        return
    assert is_finite(model)


def spoil_gradient(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
    output.register_hook(lambda gradient: gradient * NAN)
