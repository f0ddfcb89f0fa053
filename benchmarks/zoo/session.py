"""Session: one small training run, with the gate or without it.

The gate's decision is applied as a fused optimizer applies it: a discarded step leaves weights and
moments as they were, and a scaled step divides the gradients by the larger of the two factors, the
gate's and the user's clipping.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch
from tests.kit.gate_rule import Outcome, decide
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.live.protect.rule import Rule


@dataclass
class Session:
    """What a kind of run trains with: random numbers, and `step` in place of the usual lines."""

    seed: int
    rule: Rule | None = None
    stream: list[tuple[float, float]] = field(default_factory=list)
    """Loss and gradient norm of each step, before any clipping."""
    outcomes: list[Outcome] = field(default_factory=list)
    """What the gate decided; empty without one."""

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.dice = np.random.default_rng([self.seed, 1])
        self.generator = torch.Generator().manual_seed(1000 + self.seed)

    def step(self, optimizer: Optimizer, loss: Tensor, clip: float | None = None) -> None:
        """Backward, the gate, clipping, update."""
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients_of(optimizer)
        norm = float(nn.utils.get_total_norm(gradients)) if gradients else 0.0
        self.stream.append((float(loss.detach()), norm))
        divisor = 1.0 if clip is None else max(1.0, norm / clip)
        if self.rule is not None:
            outcome = decide(self.rule, *self.stream[-1])
            self.outcomes.append(outcome)
            if outcome.discarded:
                return
            divisor = max(divisor, outcome.shrink)
        if divisor > 1.0:
            torch._foreach_div_(gradients, divisor)
        optimizer.step()

    def pick(self, count: int, size: int) -> Tensor:
        """Random places in a data set."""
        return torch.randint(0, count, (size,), generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    """All gradients that an optimizer is about to use."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def adamw(module: nn.Module, lr: float = 1e-3) -> Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=lr)


def mlp(inputs: int, outputs: int, width: int = 64, hidden: int = 2) -> nn.Sequential:
    """A few layers with ReLU between them."""
    sizes = [inputs, *[width] * hidden]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))
