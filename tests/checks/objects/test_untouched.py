"""Nothing of the user's objects is changed, and an error in one check stops no other."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.kit.check_objects.faults import Tokens, healthy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trimtab.checks.objects.run import check
from trimtab.core.errors import ConfigError


class Eventful(nn.Module):
    """A model with everything that a pass changes: statistics, dropout, a counter, a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 512)
        self.num_calls = 0
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        self.num_calls += 1
        self.get_buffer("seen").add_(1)
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + self.dropout(block(x))
        out: Tensor = self.head(self.norm(x.flatten(0, 1))).view(*tokens.shape, -1)
        return out


def next_token(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, batch["labels"][:, 1:].flatten())


def training() -> dict[str, Any]:
    """Return a run in the middle of its training: moments, gradients, a frozen part, a mode."""
    torch.manual_seed(1)
    model = Eventful()
    model.blocks[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=60)
    loader = DataLoader(
        Tokens(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5)
    )
    for batch in loader:
        next_token(model, batch).backward()
        optimizer.step()
        scheduler.step()
    model.norm.eval()
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "loader": loader,
        "loss": next_token,
        "steps": 50,
    }


def values(setup: dict[str, Any]) -> list[Any]:
    """Return every bit that training depends on, read without trimtab's own code."""
    model, optimizer = setup["model"], setup["optimizer"]
    moments = optimizer.state_dict()["state"].values()
    numbers = [value for part in moments for value in part.values()]
    return [
        *(p.detach().clone() for p in model.parameters()),
        *(b.clone() for b in model.buffers()),
        *(None if p.grad is None else p.grad.clone() for p in model.parameters()),
        *(value.clone() for value in numbers),
        [p.requires_grad for p in model.parameters()],
        [module.training for module in model.modules()],
        [len(module._forward_hooks) for module in model.modules()],
        model.num_calls,
        optimizer.state_dict()["param_groups"],
        setup["scheduler"].state_dict(),
        torch.get_rng_state(),
        setup["loader"].generator.get_state(),
        random.getstate(),
        np.random.get_state(legacy=False)["state"]["key"].tolist(),  # noqa: NPY002
    ]


def assert_equal(before: list[Any], after: list[Any]) -> None:
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
        else:
            assert one == other


def test_a_run_in_the_middle_of_training_is_left_as_it_was() -> None:
    setup = training()
    tensors = [id(p) for p in setup["model"].parameters()]
    before = values(setup)
    report = check(**setup, pretrained=True)
    assert_equal(before, values(setup))
    assert report.changed == ()
    assert tensors == [id(p) for p in setup["model"].parameters()]
    assert len(report.passed) > 15


def test_training_after_a_check_has_the_bits_of_one_without() -> None:
    with_it, without = training(), training()
    check(**with_it, pretrained=True)
    torch.manual_seed(3)
    for setup in (without, with_it):
        torch.manual_seed(3)
        for batch in setup["loader"]:
            setup["optimizer"].zero_grad()
            next_token(setup["model"], batch).backward()
            setup["optimizer"].step()
    pairs = zip(without["model"].parameters(), with_it["model"].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_change_that_cannot_be_put_back_is_reported() -> None:
    setup = healthy()
    setup["model"].register_buffer("odd", torch.zeros(2))
    plain = setup["loss"]

    def meddling(model: nn.Module, batch: Any) -> Any:
        model._forward_pre_hooks[len(model._forward_pre_hooks)] = lambda *_: None
        return plain(model, batch)

    setup["loss"] = meddling
    assert check(**setup, off=["PF022", "PF035", "PF050"]).changed == ("hooks",)


def test_buffers_that_a_pass_makes_or_replaces_are_put_back() -> None:
    setup = healthy()
    model = setup["model"]
    model.register_buffer("cache", torch.zeros(1))
    plain, buffer = setup["loss"], model.get_buffer("cache")

    def caching(model: nn.Module, batch: Any) -> Any:
        model.register_buffer("made", torch.ones(3))
        model.register_buffer("cache", torch.ones(5))
        return plain(model, batch)

    setup["loss"] = caching
    report = check(**setup, off=["PF022", "PF035", "PF050"])
    assert report.changed == ()
    assert list(model._buffers) == ["cache"]
    assert model.get_buffer("cache") is buffer
    assert buffer.tolist() == [0.0]


def test_a_compiled_model_is_tested_as_the_module_inside() -> None:
    setup = healthy()
    setup["model"] = torch.compile(setup["model"], backend="aot_eager")
    assert check(**setup, off=["PF022", "PF035", "PF050"]).ids == ()


def test_an_error_in_the_users_code_is_a_finding_and_the_rest_goes_on() -> None:
    setup = healthy()

    def broken(model: nn.Module, batch: Any) -> Tensor:
        raise KeyError("labels")

    setup["loss"] = broken
    report = check(**setup)
    assert "PF001" in report.ids
    assert "KeyError: 'labels'" in next(r.what for r in report.findings)
    passed = {result.rule.id for result in report.passed}
    assert {"PF030", "PF040", "PF070"} <= passed
    assert not report.changed


def test_a_scheduler_that_raises_stops_only_its_own_test() -> None:
    setup = healthy()

    class Broken:
        def step(self) -> None:
            raise RuntimeError("no more steps")

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    setup["scheduler"] = Broken()
    report = check(**setup, off=["PF050"])
    broken = [result for result in report.results if result.is_broken]
    assert [(r.rule.id, r.reason) for r in broken] == [("PF040", "RuntimeError: no more steps")]
    assert "PF022" in {result.rule.id for result in report.passed}


def test_without_a_loader_the_static_tests_run() -> None:
    setup = healthy()
    del setup["loader"]
    report = check(**setup)
    reasons = {result.rule.id: result.reason for result in report.not_run}
    assert reasons["PF001"] == "no loader was given"
    assert {"PF030", "PF040"} <= {result.rule.id for result in report.passed}


def test_usage_errors_say_what_to_give() -> None:
    setup = healthy()
    with pytest.raises(ConfigError, match="pass the loader itself"):
        check(**(setup | {"loader": iter(setup["loader"])}))
    with pytest.raises(ConfigError, match="no rule PF999"):
        check(**setup, off=["PF999"])
    with pytest.raises(ConfigError, match="steps must be 1 or more"):
        check(**(setup | {"steps": 0}))
