"""Telemetry crosses the ranks with the numbers of the next step and arrives whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import EVERY_10, journal_of
from tests.kit.user_loop import take_step, watching
from torch import nn

BLOCKS = 60


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_the_telemetry_of_a_deep_model_is_whole_and_its_records_are_in_order(
    mode: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(BLOCKS))
    model = nn.ModuleDict({"layers": layers})
    norms, sizes = [], []
    with watching(tmp_path, mode, model=model, config=EVERY_10) as run:
        for step in range(25):
            x = torch.ones(1, 2)
            for block in layers:
                x = x + 0.1 * block(x)
            loss = x.square().mean()
            run.guard.record(loss=loss)
            loss.backward()
            if step % 10 == 0:
                grads = [p.grad.flatten() for p in layers[-1].parameters() if p.grad is not None]
                norms.append(float(torch.cat(grads).norm()))
            run.optimizer.step()
            run.optimizer.zero_grad()
            if step % 10 == 0:
                weights = torch.cat([p.detach().flatten() for p in model.parameters()])
                sizes.append(float(weights.norm()))
    block_of = journal_of(tmp_path)
    assert block_of.step.tolist() == list(range(25))
    for name, expected in (("param_norm", sizes), (f"grad_norm/layer.{BLOCKS - 1}", norms)):
        column = block_of.column(name)
        assert np.flatnonzero(column.present).tolist() == [0, 10, 20]
        assert column.values[[0, 10, 20]] == pytest.approx(expected, rel=1e-4)
    for number in range(BLOCKS):
        assert block_of.column(f"activation_rms/layers.{number}").present[[0, 10, 20]].all()


def test_a_layer_without_a_gradient_counts_with_its_weights_and_moments(tmp_path: Path) -> None:
    """LayerDrop and experts without a token are no state that was lost."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    model = nn.ModuleDict({"layers": layers})
    moments, left_out = [], {10: 0, 20: 2}

    def by_layer(_: Any) -> torch.optim.Optimizer:
        groups = [{"params": list(layer.parameters())} for layer in layers]
        return torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0)

    with watching(tmp_path, model=model, make=by_layer, config=EVERY_10) as run:
        for step in range(21):
            x = torch.ones(1, 2)
            for number, layer in enumerate(layers):
                if left_out.get(step) != number:
                    x = x + layer(x)
            take_step(run.guard, run.optimizer, x.square().mean())
            if step % 10 == 0:
                v = [run.optimizer.state[p]["exp_avg_sq"].flatten() for p in model.parameters()]
                moments.append(float(torch.cat(v).norm()))
    found = journal_of(tmp_path)
    measured = found.column("adam_v_norm").values[[0, 10, 20]]
    assert measured == pytest.approx(moments, rel=1e-4)
    assert found.column("adam_step").values[[0, 10, 20]].tolist() == [1.0, 11.0, 21.0]
    for number in range(3):
        assert (found.column(f"layer_param_norm/{number}").values[[0, 10, 20]] > 0).all()


class RowMoments(torch.optim.AdamW):
    """Keeps one second moment for each row, as Adam-mini does."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros(len(parameter), *[1] * (parameter.dim() - 1))
            state["step"] += 1
            state["exp_avg"].lerp_(parameter.grad, 0.1)
            squares = parameter.grad.square().flatten(1 if parameter.dim() > 1 else 0)
            mean = squares.mean(1).view_as(state["exp_avg_sq"]) if parameter.dim() > 1 else squares
            state["exp_avg_sq"].lerp_(mean, 0.001)
            parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + 1e-8, value=-1e-4)


def test_an_update_that_is_not_known_is_not_recorded_as_0(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Linear(4, 8, bias=False), "norm": nn.LayerNorm(8)})
    with watching(tmp_path, model=model, make=RowMoments, config=EVERY_10) as run:
        for _ in range(25):
            take_step(
                run.guard,
                run.optimizer,
                model["norm"](model["embed"](torch.randn(4, 4)).square()).square().mean(),
            )
    block = journal_of(tmp_path)
    assert not block.column("update_norm/embedding").present.any()
    assert (block.column("update_norm/norm").values[[0, 10, 20]] > 0).all()


def test_parameters_that_were_replaced_are_measured(tmp_path: Path) -> None:
    """A vocabulary that grows: new parameters take the place of as many old ones."""
    torch.manual_seed(0)
    embed, norm = nn.Embedding(4, 8), nn.LayerNorm(8)
    model = nn.ModuleDict({"embed": embed, "norm": norm})
    with watching(tmp_path, model=model, config=EVERY_10) as run:
        for step in range(45):
            if step == 15:
                old: torch.Tensor = embed.weight
                new = nn.Parameter(torch.cat([old.detach(), torch.zeros(2, 8)]))
                embed.weight = new
                run.optimizer.state.pop(old)
                group = run.optimizer.param_groups[0]
                group["params"] = [new if p is old else p for p in group["params"]]
            tokens = torch.randint(0, 4, (16,))
            take_step(run.guard, run.optimizer, norm(embed(tokens)).square().sum())
    column = journal_of(tmp_path).column("update_norm/embedding")
    assert (column.values[[0, 10, 20, 30, 40]] > 0).all()
