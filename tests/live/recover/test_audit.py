"""Adam's bound holds for any gradients, and broken moments break it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from trimtab.live.recover import audit as audit_module
from trimtab.live.recover.audit import StateAudit, adam_bound
from trimtab.live.recover.memory_watch import state_tensors

CPU = torch.device("cpu")
SOUND = [0.0] * 6


class Audit:
    """Audits one optimizer."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.state = StateAudit(optimizer, CPU)

    def audit(self) -> list[float]:
        found: list[float] = self.state.audit(state_tensors(self.optimizer)).tolist()
        return found


def make(kind: Any = optim.AdamW, **options: Any) -> tuple[nn.Parameter, optim.Optimizer]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 4))
    return weight, kind([weight], lr=1e-3, **options)


def step(weight: nn.Parameter, optimizer: optim.Optimizer, size: float = 1.0) -> None:
    weight.grad = torch.randn_like(weight) * size
    optimizer.step()


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from([0.0, 1e-30, 1e-12, 1e-4, 1.0, 1e4, 1e12]), min_size=1, max_size=60
    ),
    betas=st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.95, 0.99), (0.0, 0.99), (0.8, 0.9)]),
    kind=st.sampled_from([optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    signs=st.booleans(),
)
def test_no_gradients_break_the_bound(
    sizes: list[float], betas: tuple[float, float], kind: Any, dtype: torch.dtype, signs: bool
) -> None:
    weight = nn.Parameter(torch.randn(3, 4, dtype=dtype))
    optimizer = kind([weight], lr=1e-3, betas=betas)
    audit = Audit(optimizer)
    for size in sizes:
        noise = torch.randn(3, 4) if signs else torch.ones(3, 4)
        weight.grad = (noise * size).to(dtype)
        optimizer.step()
        assert audit.audit() == SOUND


def test_the_bounds_are_those_of_the_inequality() -> None:
    assert adam_bound((0.9, 0.999)) == pytest.approx(7.27, abs=0.01)
    assert adam_bound((0.9, 0.99)) == pytest.approx(2.35, abs=0.01)
    assert adam_bound((0.9, 0.5)) is None  # b1^2 > b2: there is none
    assert adam_bound((torch.tensor(0.9), 0.99)) is None


@pytest.mark.parametrize(
    "harm",
    [
        lambda state: state["exp_avg_sq"].zero_(),
        lambda state: state["exp_avg_sq"][2, 1].zero_(),
        lambda state: state["exp_avg_sq"][2, 1].neg_(),
        lambda state: state["exp_avg"][0, 0].fill_(1e6),
    ],
    ids=["squares zeroed", "one square zeroed", "one square negative", "large mean"],
)
def test_broken_moments_are_impossible(harm: Callable[[Any], Any]) -> None:
    weight, optimizer = make()
    audit = Audit(optimizer)
    for _ in range(30):
        step(weight, optimizer)
        assert audit.audit() == SOUND
    harm(optimizer.state[weight])
    nonfinite, impossible, _, place, *_ = audit.audit()
    assert (nonfinite, impossible) == (0, 1)
    assert place > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_found_in_weights_and_in_state(value: float) -> None:
    for key in (None, "exp_avg", "exp_avg_sq", "momentum_buffer"):
        kind = optim.SGD if key == "momentum_buffer" else optim.AdamW
        weight, optimizer = make(kind, **({"momentum": 0.9} if kind is optim.SGD else {}))
        audit = Audit(optimizer)
        step(weight, optimizer)
        assert audit.audit() == SOUND
        tensor = weight.data if key is None else optimizer.state[weight][key]
        tensor[1, 1] = value
        assert audit.audit()[0] == 1


def test_what_a_run_starts_with_is_its_own() -> None:
    weight, optimizer = make()
    weight.data[0] = float("-inf")  # a mask
    audit = Audit(optimizer)
    for _ in range(3):
        step(weight, optimizer)
        assert audit.audit()[0] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer, state: optimizer.state.clear(),
        lambda optimizer, state: state["exp_avg"].zero_(),
        lambda optimizer, state: (state["exp_avg"][1:].zero_(), state["exp_avg_sq"][1:].zero_()),
        lambda optimizer, state: optimizer.param_groups[0].update(betas=(0.9, 0.9)),
        lambda optimizer, state: optimizer.param_groups[0].update(lr=0.1),
    ],
    ids=["forget all", "forget means", "forget most", "other betas", "faster"],
)
def test_what_people_do_to_an_optimizer_is_possible(change: Callable[[Any, Any], Any]) -> None:
    weight, optimizer = make()
    audit = Audit(optimizer)
    for number in range(60):
        if number == 30:
            change(optimizer, optimizer.state[weight])
        step(weight, optimizer, 1e-3 if number < 40 else 10.0)
        assert audit.audit() == SOUND


@pytest.mark.parametrize("is_large", [False, True])
def test_moments_that_code_has_written_are_no_proof(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large tensor an eighth is audited at a time: no part of it is proof."""
    if is_large:
        monkeypatch.setattr(audit_module, "WHOLE", 8)
    weight, optimizer = make()
    audit = Audit(optimizer)
    for _ in range(30):
        step(weight, optimizer)
        assert audit.audit() == SOUND
    optimizer.state[weight]["exp_avg_sq"].mul_(1e-6)
    audit.state.accept_written_state()
    for _ in range(40):
        assert audit.audit() == SOUND
    for _ in range(200):
        step(weight, optimizer)
        assert audit.audit() == SOUND
    optimizer.state[weight]["exp_avg_sq"].mul_(
        1e-6
    )  # past torch's counters: possible moments are audited again
    assert any(audit.audit()[1] for _ in range(8))


def test_an_infinity_that_training_goes_on_with_is_accepted_and_a_nan_is_not() -> None:
    for value, is_accepted in ((float("-inf"), True), (float("nan"), False)):
        weight, optimizer = make()
        audit = Audit(optimizer)
        step(weight, optimizer)
        assert audit.audit() == SOUND
        weight.data[1, 1] = value
        assert audit.audit()[0] == 1
        audit.state.accept_infinities()
        assert audit.audit()[0] == (not is_accepted)


class AdamMini(optim.AdamW):
    """A subclass may keep one second moment for many elements, or one of something else."""


def test_the_moments_of_a_subclass_are_its_own() -> None:
    weight, optimizer = make(AdamMini)
    audit = Audit(optimizer)
    step(weight, optimizer)
    assert audit.audit() == SOUND
    for shape in ((6, 1), (6, 4)):
        optimizer.state[weight]["exp_avg_sq"] = torch.full(shape, 1e-12)
        assert audit.audit() == SOUND
