"""What users do on purpose with whole models: noise, averages, other checkpoints."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.attack.purpose_cases.loop import (
    STEPS,
    Classifier,
    Transformer,
    case,
    markov,
)

# Noise, averages and other models.


@case
class LangevinNoise(Classifier):
    """SGLD: noise is added to all weights after each update, from 130 on."""

    at = range(130, STEPS)
    place = "updated"

    @torch.no_grad()
    def edit(self) -> None:
        for parameter in self.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=self.random), alpha=0.003)

    def holds(self) -> bool:
        return self.remains() > 0.9


@case
class AverageWrittenBack(Transformer):
    """Polyak: the mean of the weights of the last 30 steps becomes the weights at 181."""

    at = range(150, 182)
    horizon = 3

    def edit(self) -> None:
        if self.step == 150:
            self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.average.update_parameters(self.model)
        if self.step == 181:
            self.model.load_state_dict(self.average.module.state_dict())


@case
class LookaheadByHand(Transformer):
    """Every 5 steps the weights go half of the way back to the slow ones."""

    at = range(90, STEPS, 5)
    horizon = 3

    @torch.no_grad()
    def edit(self) -> None:
        slow = getattr(self, "slow", [p.detach().clone() for p in self.model.parameters()])
        for parameter, anchor in zip(self.model.parameters(), slow, strict=True):
            anchor.lerp_(parameter, 0.5)
            parameter.copy_(anchor)
        self.slow = slow


@case
class SoupWithSibling(Transformer):
    """Model soup: the mean with a copy that was trained aside on another domain for 20 steps."""

    at = (140,)
    horizon = 3

    def edit(self) -> None:
        sibling = copy.deepcopy(self.model)
        optimizer = torch.optim.Adam(sibling.parameters(), lr=3e-3)
        for index in range(20):
            tokens = markov(5000 + index, 16, 13, 1)
            logits = sibling(tokens[:, :-1]).flatten(0, 1)
            F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        for mine, other in zip(self.model.parameters(), sibling.parameters(), strict=True):
            mine.data = torch.lerp(mine.data, other.data, 0.5)


@case
class TaskVectorSubtracted(Transformer):
    """Unlearning: a third of what the weights have learned since step 90 is taken back."""

    at = (90, 170)

    @torch.no_grad()
    def edit(self) -> None:
        if self.step == 90:
            self.start = [p.detach().clone() for p in self.model.parameters()]
            return
        for parameter, start in zip(self.model.parameters(), self.start, strict=True):
            parameter -= 0.33 * (parameter - start)


@case
class BestWeightsAgain(Classifier):
    """Early stopping by hand: the weights of step 150 come back at 180, with half the rate."""

    at = (150, 180)

    def edit(self) -> None:
        if self.step == 150:
            self.best = copy.deepcopy(self.model.state_dict())
            return
        self.model.load_state_dict(self.best)
        self.optimizer.param_groups[0]["lr"] *= 0.5


@case
class PartlyLoaded(Transformer):
    """Only the blocks are taken from another checkpoint, `strict=False`."""

    at = (130,)

    def edit(self) -> None:
        other = type(self)(seed=9).model.state_dict()
        blocks = {name: value for name, value in other.items() if "blocks.1" in name}
        self.model.load_state_dict(blocks, strict=False)


@case
class LoadedByAssignment(Transformer):
    """`load_state_dict(assign=True)` of rescaled weights; the optimizer gets the new parameters."""

    at = (150,)

    def edit(self) -> None:
        old = list(self.model.parameters())
        state = {name: 0.9 * value for name, value in self.model.state_dict().items()}
        state |= {n: v.clone() for n, v in self.model.state_dict().items() if "mask" in n}
        self.model.load_state_dict(state, assign=True)
        for before, now in zip(old, self.model.parameters(), strict=True):
            self.exchange(before, now)


@case
class SwappedTensors(Transformer):
    """`torch.utils.swap_tensors` puts a new head in the place of the old one."""

    at = (144,)

    def edit(self) -> None:
        new = nn.Parameter(0.05 * torch.randn(self.model.head.weight.shape, generator=self.random))
        torch.utils.swap_tensors(self.model.head.weight, new)
        self.exchange(new, self.model.head.weight)


@case
class SetToSharedStorage(Transformer):
    """The embedding moves to memory that a data server shares, scaled, by `set_`."""

    at = (159,)

    @torch.no_grad()
    def edit(self) -> None:
        shared = (1.25 * self.model.embed.weight).share_memory_()
        self.model.embed.weight.set_(shared)
