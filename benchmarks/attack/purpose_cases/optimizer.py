"""What users do on purpose to the optimizer and the gradients of a run."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from benchmarks.attack.purpose_cases.loop import (
    STEPS,
    USED,
    WIDTH,
    Classifier,
    Loop,
    Transformer,
    case,
)

# Optimizer.


class _Moments(Loop):
    """The edit is looked for in the moments, soon: they forget it by themselves."""

    horizon = 2

    def copies(self) -> dict[str, torch.Tensor]:
        named = ((f"{i} {name}", v) for i, s in enumerate(self.states()) for name, v in s.items())
        return {name: value.clone() for name, value in named if value.ndim}


@case
class MomentsInBf16(Transformer):
    """Moments are kept in the precision of bf16 after each update, to fit a smaller machine."""

    at = range(111, STEPS)
    place = "updated"

    def edit(self) -> None:
        for state in self.states():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].bfloat16().float()

    def holds(self) -> bool:
        moments = [state["exp_avg"] for state in self.states()]
        return all(torch.equal(m, m.bfloat16().float()) for m in moments)


@case
class MomentsQuantisedNumpy(Transformer):
    """Second moments go through 8 bits (of the square root) every 20 steps, by NumPy views."""

    at = range(95, STEPS, 20)

    def edit(self) -> None:
        for state in self.states():
            values = state["exp_avg_sq"].numpy()
            scale = max(float(values.max()) ** 0.5 / 255, 1e-12)
            values[...] = ((values**0.5 / scale).round().clip(1) * scale) ** 2

    def holds(self) -> None:
        """Nothing: it acts on updates only."""


@case
class MomentsOffloaded(_Moments, Classifier):
    """Momentum is sent to another process and back: other tensors with the same values, halved."""

    at = (150,)

    def edit(self) -> None:
        for state in self.states():
            sent = state["momentum_buffer"].numpy().copy()
            state["momentum_buffer"] = torch.from_numpy(0.5 * sent)


@case
class OneMomentReset(_Moments, Transformer):
    """Both moments of one replaced weight are set to 0, through NumPy."""

    at = (156,)

    def edit(self) -> None:
        state = self.optimizer.state[self.model.head.weight]
        state["exp_avg"].numpy()[3, 3] = 0
        state["exp_avg_sq"].numpy()[3, 3] = 0


@case
class NeuronAndStateReplaced(Transformer):
    """A hidden unit is drawn anew through `.data`, and its rows of the moments are zeroed."""

    at = (109, 110)

    def edit(self) -> None:
        weight = self.model.blocks[1].mlp[0].weight
        weight.data[self.step - 100] = 0.2 * torch.randn(WIDTH, generator=self.random)
        for name in ("exp_avg", "exp_avg_sq"):
            self.optimizer.state[weight][name][self.step - 100] = 0


@case
class StepCountRaised(Transformer):
    """The step count of Adam is set to that of the run that the weights come from."""

    at = (99,)

    def edit(self) -> None:
        for state in self.states():
            state["step"].fill_(10_000)

    def holds(self) -> bool:
        return all(float(state["step"]) > 10_000 for state in self.states())


@case
class OptimizerStateLoaded(Transformer):
    """Only the optimizer goes back to a state of 30 steps ago, to test its influence."""

    at = (120, 150)

    def edit(self) -> None:
        if self.step == 120:
            self.saved = copy.deepcopy(self.optimizer.state_dict())
        else:
            self.optimizer.load_state_dict(self.saved)

    def holds(self) -> bool:
        return all(float(state["step"]) == STEPS - 30 for state in self.states())


class _Settings(Transformer):
    """Settings of the first group are changed at a step."""

    settings: ClassVar[Mapping[str, Any]]

    def edit(self) -> None:
        self.optimizer.param_groups[0].update(self.settings)

    def holds(self) -> bool:
        group = self.optimizer.param_groups[0]
        return all(group[name] == value for name, value in self.settings.items())


@case
class Maximise(_Settings):
    """Unlearning by ascent: `maximize` is switched on for good."""

    at = (215,)
    settings: ClassVar[Mapping[str, Any]] = {"maximize": True}


@case
class GroupsSplit(Transformer):
    """One group becomes two: norms and biases without decay and with a rate three times as high."""

    at = (145,)

    def edit(self) -> None:
        group = self.optimizer.param_groups[0]
        vectors = [p for p in group["params"] if p.ndim < 2]
        group["params"] = [p for p in group["params"] if p.ndim >= 2]
        self.optimizer.param_groups.append(
            {**group, "params": vectors, "weight_decay": 0.0, "lr": 3 * group["lr"]}
        )

    def holds(self) -> bool:
        return len(self.optimizer.param_groups) == 2


class _Cautious(torch.optim.Adam):
    """The user's Adam: an update whose sign disagrees with the gradient is left out."""

    def step(self, closure: Any = None) -> Any:
        before = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        result = super().step(closure)
        parameters = (p for group in self.param_groups for p in group["params"])
        for parameter, old in zip(parameters, before, strict=True):
            if parameter.grad is not None:
                agrees = (old - parameter.data) * parameter.grad > 0
                parameter.data = torch.where(agrees, parameter.data, old)
        return result


@case
class CautiousSubclass(Transformer):
    """A subclass of Adam corrects its update through `.data`; at 150 its rate is tripled."""

    at = (150,)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return _Cautious(self.trained(), lr=3e-3)

    def edit(self) -> None:
        self.optimizer.param_groups[0]["lr"] = 9e-3

    def holds(self) -> bool:
        return bool(self.optimizer.param_groups[0]["lr"] == 9e-3)


# Gradients.


@case
class SignOfGradients(Classifier):
    """From 140 on only the signs of the gradients are used, with a small rate."""

    at = range(140, STEPS)
    place = "grads"
    max_norm = 1e9

    def edit(self) -> None:
        self.optimizer.param_groups[0]["lr"] = 2e-4
        for parameter in self.model.parameters():
            parameter.grad.sign_()

    def holds(self) -> None:
        """Nothing: it acts on updates only."""


@case
class GradientsSparse(Transformer):
    """Only the largest tenth of each gradient is applied, as compression does, from 120 on."""

    at = range(120, STEPS)
    place = "grads"

    def edit(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                size = parameter.grad.abs()
                parameter.grad[size < size.flatten().quantile(0.9)] = 0

    def holds(self) -> None:
        """Nothing: it acts on updates only."""


@case
class NewTokensOnly(Transformer):
    """The gradient of all known embeddings is zeroed: only reserved tokens would still learn."""

    at = range(150, STEPS)
    place = "grads"

    def edit(self) -> None:
        self.model.embed.weight.grad[:USED] = 0

    def holds(self) -> None:
        """Nothing: it acts on updates only."""


@case
class SharpnessAware(Classifier):
    """SAM by hand from 130 on: up along the gradient, a second backward pass, and down again."""

    at = range(130, STEPS)
    place = "grads"

    def edit(self) -> None:
        parameters = list(self.model.parameters())
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        moves = [p.grad * (0.05 / norm) for p in parameters]
        torch._foreach_add_([p.data for p in parameters], moves)
        self.optimizer.zero_grad()
        self.loss().backward()
        torch._foreach_sub_([p.data for p in parameters], moves)

    def holds(self) -> None:
        """Nothing: it acts on updates only."""


@case
class ZerothOrderProbe(Transformer):
    """MeZO: every 10 steps all weights are moved along noise, twice back, and forth again."""

    at = range(100, STEPS, 10)

    @torch.no_grad()
    def edit(self) -> None:
        for size in (1e-2, -2e-2, 1e-2):
            noise = torch.Generator().manual_seed(self.step)
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=size)
            self.loss()

    def holds(self) -> None:
        """Nothing: it acts on updates only."""


@case
class Reptile(Transformer):
    """Meta-learning: every 10 steps the weights go to 0.7 of the way since the last time."""

    at = range(90, STEPS, 10)
    horizon = 3

    def edit(self) -> None:
        last = self.__dict__.setdefault("last", copy.deepcopy(self.model))
        for parameter, old in zip(self.model.parameters(), last.parameters(), strict=True):
            old.data.lerp_(parameter.data, 0.7)
            parameter.data.copy_(old.data)


@case
class RecomputeSwitchedOn(Transformer):
    """Activations are recomputed from now on, to save memory."""

    at = (131,)

    def edit(self) -> None:
        self.model.checkpoints = True

    def holds(self) -> bool:
        return bool(self.model.checkpoints)
