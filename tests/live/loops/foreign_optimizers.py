"""Optimizers as other packages write them: small, and each with one habit of theirs."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer


class AdamLike(Optimizer):
    """State under the names that torch's Adam uses, all of it readable."""

    options: ClassVar[dict[str, Any]] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}
    names: ClassVar[tuple[str, str]] = ("exp_avg", "exp_avg_sq")

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, dict(self.options))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            self.fill(state, parameter)
        mean, square = (state[name] for name in self.names)
        gradient = parameter.grad.to(mean.dtype)  # type: ignore[union-attr]
        mean.lerp_(gradient, 0.1)
        square.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        rate = float(group.get("lr") or 1e-2)
        parameter.sub_((mean / (square.sqrt() + 1e-8) * rate).to(parameter.dtype))
        self.count(state, group)

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        for name in self.names:
            state[name] = torch.zeros_like(parameter)
        state["step"] = torch.zeros(())

    def count(self, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Count the steps of a parameter."""
        state["step"] += 1


class CountsByInteger(AdamLike):
    """`step` is an int, as in DeepSpeedCPUAdam and many repositories."""

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        super().fill(state, parameter)
        state["step"] = 0


class CountsInTheGroup(AdamLike):
    """No `step` in the state: apex keeps it in the group."""

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        super().fill(state, parameter)
        del state["step"]

    def count(self, state: dict[str, Any], group: dict[str, Any]) -> None:
        group["step"] = group.get("step", 0) + 1


def with_options(**options: Any) -> type[AdamLike]:
    """Return an optimizer whose groups have these options only."""
    return type(f"Has {sorted(options)}", (AdamLike,), {"options": options})


class KeepsMomentsInFp32(AdamLike):
    """fp32 moments beside bf16 parameters."""

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        super().fill(state, parameter)
        state["exp_avg"] = state["exp_avg"].float()
        state["exp_avg_sq"] = state["exp_avg_sq"].float()


class KeepsMomentsInBytes(AdamLike):
    """8-bit moments: integers whose scale is kept elsewhere."""

    def update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.int8)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.uint8)
        parameter.sub_(parameter.grad.sign() * 1e-3)  # type: ignore[union-attr]


ADAM_LIKE = [
    AdamLike,
    CountsByInteger,
    CountsInTheGroup,
    with_options(lr=1e-2, betas=(0.9, 0.95, 0.99), eps=1e-8),  # Adan, AdEMAMix
    with_options(lr=1e-2, eps=1e-8),
    with_options(lr=1e-2, betas=(0.9, 0.95)),
    with_options(betas=(0.9, 0.95), eps=1e-8),  # learning-rate-free methods
    with_options(lr=None, betas=(0.9, 0.95), eps=1e-8),  # Adafactor with relative steps
    KeepsMomentsInBytes,
]
"""Their state has Adam's names; of all but the first it cannot be read as Adam's."""
