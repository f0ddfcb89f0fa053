"""Optimizers as other packages write them: small, and each with one habit of theirs."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer


class Foreign(Optimizer):
    """An optimizer in a few lines; subclasses differ in what they keep and where."""

    defaults_given: ClassVar[dict[str, Any]] = {"lr": 1e-2}
    names: ClassVar[tuple[str, str]] = ("average", "square_average")

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, dict(self.defaults_given))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self.begin(group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def begin(self, group: dict[str, Any]) -> None:
        """What happens once per group and step, gradients or not."""

    def update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            self.fill(state, parameter)
        mean, square = (state[name] for name in self.names)
        gradient = parameter.grad.to(mean.dtype)  # type: ignore[union-attr]
        mean.lerp_(gradient, 0.1)
        square.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        parameter.sub_((mean / (square.sqrt() + 1e-8) * self.rate(group)).to(parameter.dtype))
        self.count(state, group)

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        for name in self.names:
            state[name] = torch.zeros_like(parameter)

    def count(self, state: dict[str, Any], group: dict[str, Any]) -> None:
        """What counts the steps of a parameter."""

    def rate(self, group: dict[str, Any]) -> float:
        return float(group.get("lr") or 1e-2)


class AdamLike(Foreign):
    """State under the names that torch's Adam uses, all of it readable."""

    defaults_given = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}  # noqa: RUF012
    names = ("exp_avg", "exp_avg_sq")

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        super().fill(state, parameter)
        state["step"] = torch.zeros(())

    def count(self, state: dict[str, Any], group: dict[str, Any]) -> None:
        state["step"] += 1


class CountsByInteger(AdamLike):
    """`step` is an int, as in DeepSpeedCPUAdam and many repositories."""

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        super().fill(state, parameter)
        state["step"] = 0


class CountsInTheGroup(AdamLike):
    """No `step` in the state: apex keeps it in the group."""

    def fill(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        Foreign.fill(self, state, parameter)

    def count(self, state: dict[str, Any], group: dict[str, Any]) -> None:
        group["step"] = group.get("step", 0) + 1


class HasThreeBetas(AdamLike):
    """Adan, AdEMAMix."""

    defaults_given = {"lr": 1e-2, "betas": (0.9, 0.95, 0.99), "eps": 1e-8}  # noqa: RUF012


class HasNoBetas(AdamLike):
    """The betas are attributes."""

    defaults_given = {"lr": 1e-2, "eps": 1e-8}  # noqa: RUF012


class HasNoEpsilon(AdamLike):
    """The epsilon is a constant."""

    defaults_given = {"lr": 1e-2, "betas": (0.9, 0.95)}  # noqa: RUF012


class HasNoRate(AdamLike):
    """Learning-rate-free methods."""

    defaults_given = {"betas": (0.9, 0.95), "eps": 1e-8}  # noqa: RUF012


class HasRateNone(AdamLike):
    """Adafactor with relative steps."""

    defaults_given = {"lr": None, "betas": (0.9, 0.95), "eps": 1e-8}  # noqa: RUF012


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


class NeedsEveryGradient(Foreign):
    """Ranger21, Adai: a step over parameters without gradients raises."""

    def begin(self, group: dict[str, Any]) -> None:
        torch.stack([parameter.grad.norm() for parameter in group["params"]])


class CountsInSharedState(Foreign):
    """MADGRAD: one counter for all parameters, which moves with or without gradients."""

    def begin(self, group: dict[str, Any]) -> None:
        self.state.setdefault("k", torch.zeros((), dtype=torch.long)).add_(1)  # type: ignore[call-overload]

    def rate(self, group: dict[str, Any]) -> float:
        return 1e-2 / math.sqrt(float(self.state["k"]))  # type: ignore[index]


class ChangesItsGroupInPlace(Foreign):
    """Prodigy: an estimate in the group that every step moves."""

    defaults_given = {"lr": 1e-2, "d": 1.0}  # noqa: RUF012

    def begin(self, group: dict[str, Any]) -> None:
        if not isinstance(group["d"], torch.Tensor):
            group["d"] = torch.ones(())
        group["d"].mul_(0.99)

    def rate(self, group: dict[str, Any]) -> float:
        return 1e-2 * float(group["d"])


class DecaysWithoutGradients(Foreign):
    """Weight decay on every parameter, gradient or not."""

    def begin(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            parameter.mul_(0.999)


class SlowWeights(Optimizer):
    """Lookahead: a wrapper with an update of its own every third step."""

    def __init__(self, parameters: Any) -> None:
        self.optimizer = torch.optim.RMSprop(parameters, lr=1e-3)
        self.param_groups = self.optimizer.param_groups
        self.defaults = self.optimizer.defaults
        self.state = self.optimizer.state
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.taken = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.optimizer.step()
        self.taken += 1
        if self.taken % 3 == 0:
            fast = [p for group in self.param_groups for p in group["params"]]
            for slow, parameter in zip(self.slow, fast, strict=True):
                slow.lerp_(parameter, 0.5)
                parameter.copy_(slow)


class SharpnessAware(Optimizer):
    """SAM as it is usually written: two methods, and `step` is never called on it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-1})
        self.inner = torch.optim.SGD(self.param_groups, lr=1e-1)

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["before"] = parameter.clone()
                parameter.add_(0.05 * parameter.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["before"])
                parameter.sub_(group["lr"] * parameter.grad)
        self.zero_grad()


ADAM_LIKE = [
    AdamLike,
    CountsByInteger,
    CountsInTheGroup,
    HasThreeBetas,
    HasNoBetas,
    HasNoEpsilon,
    HasNoRate,
    HasRateNone,
    KeepsMomentsInBytes,
]
"""Their state has Adam's names; of all but the first it cannot be read as Adam's."""

NOT_A_NO_OP = [
    NeedsEveryGradient,
    CountsInSharedState,
    ChangesItsGroupInPlace,
    DecaysWithoutGradients,
    SlowWeights,
]
"""A step without gradients is not a step that never was."""
