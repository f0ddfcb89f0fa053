"""Parameter groups, muP, the schedule, and that every option learns."""

import itertools
from typing import Any

import pytest
import torch
from tests.kit.cases import some_of
from tests.lab.models import make, rows

from trimtab.lab.corpus.data import DataConfig, TokenCorpus, WindowDataset
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import (
    OptimizerConfig,
    lr_factor,
    make_optimizer,
    make_schedule,
    parameter_groups,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tied_head": False},
    "qk_norm": {"qk_norm": True},
    "post_norm": {"post_norm": True},
    "mup": {"mup_base_width": 32},
    "init_std": {"init_std": 0.05},
}


@pytest.mark.parametrize("name", some_of(OPTIONS, "plain", "mup"))
def test_every_option_learns(name: str, corpus: TokenCorpus) -> None:
    model = make(**OPTIONS[name])
    optimizer = make_optimizer(model, OptimizerConfig(lr=3e-3))
    data = WindowDataset(corpus, DataConfig(batch_size=8, length=32))
    losses = []
    for position in range(30):
        batch = data[position]
        loss = model(batch.tokens, batch.targets).cross_entropy
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    # It starts at ln 512 = 6.24; 30 steps make 5 at the latest.
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.4


def names_of(model: Gpt, group: dict[str, Any]) -> set[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in group["params"]}


def test_only_matrices_decay() -> None:
    model = make(tied_head=False, qk_norm=True)
    groups = parameter_groups(model, lr=1e-3, weight_decay=0.1)
    hidden, head, plain = (names_of(model, group) for group in groups)
    assert hidden | head | plain == {name for name, _ in model.named_parameters()}
    assert len(hidden) + len(head) + len(plain) == len(hidden | head | plain)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert [group["lr"] for group in groups] == [1e-3] * 3
    assert head == {"head.weight"}
    assert {"embed.weight", "norm.weight"} < plain
    assert all("norm" not in name and "embed" not in name for name in hidden)


def test_mup_scales_hidden_matrices_only() -> None:
    model = make(tied_head=False, mup_base_width=16)  # 4 times as wide as its base
    groups = parameter_groups(model, lr=1e-3, weight_decay=0.1)
    assert [group["lr"] for group in groups] == [0.25e-3, 1e-3, 1e-3]
    assert [group["weight_decay"] for group in groups] == [0.4, 0.1, 0.0]
    state, plain = model.state_dict(), make(tied_head=False).state_dict()
    name = "blocks.0.attention.qkv.weight"
    torch.testing.assert_close(2 * state[name], plain[name])
    assert torch.equal(state["embed.weight"], plain["embed.weight"])


def test_under_mup_the_first_steps_move_wide_logits_as_far_as_narrow_ones() -> None:
    def moved(width: int, base: int | None) -> float:
        model = make(width=width, heads=width // 16, mup_base_width=base)
        optimizer = make_optimizer(model, OptimizerConfig(lr=1e-3))
        before = model(*rows()).logits.detach()
        for _ in range(3):
            model(*rows()).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return float((model(*rows()).logits.detach() - before).square().mean().sqrt())

    assert moved(512, 32) / moved(32, 32) < 2
    assert moved(512, None) / moved(32, None) > 4


def test_the_lr_rises_linearly_falls_as_a_cosine_and_ends_at_a_tenth() -> None:
    factors = [lr_factor(step, warmup=10, steps=111) for step in range(111)]
    assert factors[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert factors[10] == 1.0
    assert factors[60] == pytest.approx(0.55)
    assert factors[110] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))


def test_the_scheduler_gives_each_step_its_rate_and_keeps_groups_apart() -> None:
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in (1.0, 0.25)]
    optimizer = torch.optim.SGD(groups)
    scheduler = make_schedule(optimizer, warmup=4, steps=40)
    for step in range(40):
        factor = lr_factor(step, warmup=4, steps=40)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == [factor, 0.25 * factor]
        optimizer.step()
        scheduler.step()
