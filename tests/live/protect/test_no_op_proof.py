"""Whether a step without gradients is none is proven before it is relied on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.protect.made_up import make_model, plain
from torch import nn, optim

import trimtab
from trimtab.core.errors import ConfigError
from trimtab.live.protect.fused_support import why_not_discardable


class Decays(optim.SGD):
    """Decays all weights, with or without a gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.99)


class Raises(optim.SGD):
    """Cannot bear a missing gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.1 * parameter.grad)


class Counts(optim.SGD):
    """Counts in every place that can be put back."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.count = 0
        self.param_groups[0]["scale"] = torch.ones(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        shared: Any = self.state
        shared["k"] = shared.get("k", 0) + 1
        self.param_groups[0]["scale"].mul_(2.0)


MUON = [plain(optim.Muon)] if hasattr(optim, "Muon") else []


@pytest.mark.parametrize(
    "make",
    [plain(optim.RMSprop), plain(optim.NAdam), plain(optim.Rprop), *MUON, Counts],
)
def test_most_optimizers_pass(make: Any) -> None:
    model = make_model()
    optimizer = make(list(model.parameters()))
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    assert why_not_discardable(optimizer) is None
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert not optimizer.state
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("make", "why"), [(Decays, "changes weights or state"), (Raises, "cannot step")]
)
def test_the_others_are_refused_in_one_sentence(make: Any, why: str, tmp_path: Path) -> None:
    model = make_model()
    optimizer = make(list(model.parameters()))
    with pytest.raises(ConfigError, match=f"{make.__name__} {why}.*use mode='observe'"):
        trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect")
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(module._forward_hooks for module in model.modules())
    with trimtab.watch(model, optimizer, run_dir=tmp_path):  # and nothing is in its way
        pass


def test_an_update_around_an_optimizer_is_refused(tmp_path: Path) -> None:
    class Lookahead(optim.Optimizer):
        def __init__(self, inner: optim.Optimizer) -> None:
            self.optimizer = inner

        def step(self, closure: Any = None) -> Any:
            return self.optimizer.step()

    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="Lookahead moves the weights itself"):
        trimtab.watch(
            model,
            Lookahead(optim.SGD(model.parameters())),
            run_dir=tmp_path,
            mode="protect",
        )
