"""Whether a step without gradients is none is proven before it is relied on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.user_loop import are_equal, weights
from tests.live.protect.made_up import give_gradients, make_model, plain, protecting
from torch import optim

import trimtab
from trimtab.core.errors import ConfigError
from trimtab.live.protect.no_op_proof import why_not_discardable
from trimtab.state.contents import MAX_ENTRIES, SMALL_ELEMENTS


class Decays(optim.SGD):
    """Decays all weights, with or without a gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.99)


class Raises(Decays):
    """Cannot bear a missing gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.1 * parameter.grad)


class Counts(Decays):
    """Counts in every place that can be put back."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
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
    before = weights(model)
    state = torch.get_rng_state()
    assert why_not_discardable(optimizer) is None
    assert are_equal(weights(model), before)
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


class DecaysItsState(Decays):
    """Decays what it holds, and not before it holds something."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                self.state[parameter].setdefault("average", torch.zeros(20, 5)).add_(0.1)
        for state in self.state.values():
            state["average"].data.mul_(0.9)


def test_what_moves_with_a_state_only_is_found_at_the_second_update(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with protecting(tmp_path, DecaysItsState) as run:
        for number in range(3):
            run.take(number)
    assert caplog.text.count("DecaysItsState changes weights or state in a step without") == 1
    assert "trimtab protects no longer" in caplog.text
    average = run.optimizer.state[next(run.model.parameters())]["average"]
    torch.testing.assert_close(average, torch.full((20, 5), 0.1 * (0.9**3 + 0.9**2 + 0.9)))


class Replaces(Decays):
    """Gives every weight a new tensor."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            parameter.data = parameter.data * 0.99


class TalksToRanks(Decays):
    """Sums over ranks, gradients or not."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        torch.ops._c10d_functional.all_reduce(torch.ones(1), "sum", "0")


class HoldsALot(Decays):
    """Has a list that is too long to be looked through."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.history = [0.0] * (MAX_ENTRIES + 1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Replaces, "replaces weights"),
        (TalksToRanks, "exchanges numbers with other ranks"),
        (HoldsALot, "holds too many objects"),
    ],
)
def test_what_is_refused_is_left_as_it_was(make: Any, why: str) -> None:
    model = make_model()
    give_gradients(model, 0)
    gradients = [p.grad for p in model.parameters()]
    addresses = [p.data_ptr() for p in model.parameters()]
    assert f"{make.__name__} {why}" in str(why_not_discardable(make(list(model.parameters()))))
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))


class Master(optim.SGD):
    """Keeps a second copy of all weights and the model itself, as mixed precision does."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.model = model
        self.master = [p.detach().clone() for p in model.parameters()]
        self.calls = 0
        self.on_step: Any = None

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        self.on_step()
        return super().step(closure)


def test_nothing_large_is_copied_and_no_hook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(100, 100)
    optimizer = Master(model)
    calls: list[str] = []
    optimizer.on_step = lambda: calls.append("step")
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre-hook"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post-hook"))
    copied: list[int] = []
    clone = torch.Tensor.clone

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor.numel())
        return clone(tensor)

    monkeypatch.setattr(torch.Tensor, "clone", noted)
    assert why_not_discardable(optimizer) is None
    assert sum(copied) <= SMALL_ELEMENTS
    assert calls == ["step"]
    assert optimizer.calls == 0
