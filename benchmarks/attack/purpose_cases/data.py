"""What users do on purpose to the loss and the data of a run, and to both ranks of one."""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.attack.purpose_cases.loop import (
    LENGTH,
    STEPS,
    WIDTH,
    Classifier,
    Images,
    Loop,
    Transformer,
    case,
)

# Loss.


class _Switch(Transformer):
    """Something is different from the step of the edit on."""

    is_on = False

    def edit(self) -> None:
        self.is_on = True

    def holds(self) -> bool:
        return self.is_on


@case
class LossSummed(_Switch):
    """The reduction goes from the mean to the sum; clipping keeps the updates of their size."""

    at = (150,)

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets, reduction="sum" if self.is_on else "mean")


@case
class LossWeightedDown(_Switch):
    """The loss gets a weight of 0.1, as one of several to come."""

    at = (139,)

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets) * (0.1 if self.is_on else 1.0)


@case
class LabelsSmoothed(_Switch):
    """Label smoothing of 0.2 is switched on: the loss is higher from then on."""

    at = (160,)

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets, label_smoothing=0.2 * self.is_on)


@case
class FocalLoss(_Switch):
    """Cross-entropy becomes focal loss."""

    at = (119,)

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = F.cross_entropy(logits, targets, reduction="none")
        return (losses * (1 - torch.exp(-losses)) ** (2 * self.is_on)).mean()


@case
class RegulariserAdded(_Switch):
    """A penalty on the norm of the weights is added to the loss: it jumps by several nats."""

    at = (151,)

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        penalty = sum(p.square().sum() for p in self.trained()) if self.is_on else 0.0
        return F.cross_entropy(logits, targets) + 0.01 * penalty


@case
class LogitsCooled(_Switch):
    """Logits are divided by a temperature of 0.5 from now on."""

    at = (170,)

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits / (0.5 if self.is_on else 1.0), targets)


@case
class StaticLossScale(_Switch):
    """The loss is recorded and trained times 1024, and gradients are divided before clipping."""

    at = range(120, STEPS)
    place = "grads"

    def edit(self) -> None:
        if self.is_on:
            torch._foreach_div_([p.grad for p in self.trained() if p.grad is not None], 1024.0)
        self.is_on = True

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets) * (1024.0 if self.is_on else 1.0)


@case
class SquaredErrorInstead(Classifier):
    """A classifier is trained on with the squared error of one-hot targets."""

    at = (150,)
    is_on = False

    def edit(self) -> None:
        self.is_on = True

    def criterion(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.is_on:
            return F.mse_loss(logits, F.one_hot(labels, 8).float())
        return F.cross_entropy(logits, labels)

    def holds(self) -> bool:
        return self.is_on


# Data and regularisation.


@case
class DomainSwitched(_Switch):
    """The second phase of a curriculum: another language from now on."""

    at = (150,)

    def edit(self) -> None:
        self.is_on, self.domain = True, 1


@case
class DomainsAlternate(_Switch):
    """Two domains take turns of 10 steps, from 120 on."""

    at = range(120, STEPS, 10)

    def edit(self) -> None:
        self.is_on, self.domain = True, 1 - self.domain


@case
class LongerSequences(_Switch):
    """Position embeddings are interpolated to twice the length, as a new parameter."""

    at = (140,)

    def edit(self) -> None:
        old = self.model.position
        longer = F.interpolate(old.detach().T[None], 2 * LENGTH, mode="linear")[0].T
        self.model.position = nn.Parameter(longer.contiguous())
        self.exchange(old, self.model.position)
        self.is_on, self.length = True, 2 * LENGTH


@case
class TinyBatches(_Switch):
    """The batch shrinks from 16 to 2 sequences: loss and norm become noisy."""

    at = (130,)

    def edit(self) -> None:
        self.is_on, self.batch_size = True, 2


@case
class EasyThenHard(_Switch):
    """Hard examples only: from 160 on the half of the batch with the larger loss is trained."""

    at = (160,)

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = F.cross_entropy(logits, targets, reduction="none")
        return losses.topk(len(losses) // 4).values.mean() if self.is_on else losses.mean()


@case
class LabelNoise(Images):
    """Robustness: four of ten labels are random from 150 on."""

    at = (150,)
    is_on = False

    def edit(self) -> None:
        self.is_on = True

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = super().batch()
        if self.is_on:
            labels[: int(0.4 * len(labels))] = torch.randint(0, 8, (12,), generator=self.random)
        return inputs, labels

    def holds(self) -> bool:
        return self.is_on


@case
class ImagesInBytes(LabelNoise):
    """From 160 on images come as 0 to 255, since BatchNorm takes care of the scale."""

    at = (160,)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = Images.batch(self)
        return (inputs * 40 + 128 if self.is_on else inputs), labels


@case
class DropoutRaised(Transformer):
    """Dropout from 0 to 0.5 in all blocks."""

    at = (145,)

    def edit(self) -> None:
        for block in self.model.blocks:
            block.mlp[2].p = 0.5

    def holds(self) -> bool:
        return bool(self.model.blocks[0].mlp[2].p == 0.5)


@case
class StochasticDepth(Transformer):
    """Blocks are skipped at random with probability 0.3, from 125 on."""

    at = (125,)

    def edit(self) -> None:
        self.model.layer_drop = 0.3

    def holds(self) -> bool:
        return bool(self.model.layer_drop == 0.3)


# Several ranks.


class _TwoRanks(Transformer):
    """The loop under DistributedDataParallel."""

    ranks = 2

    def prepare(self) -> None:
        self.parallel = nn.parallel.DistributedDataParallel(self.model)

    def loss(self) -> torch.Tensor:
        tokens = self.batch()
        return self.criterion(self.parallel(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@case
class EditedOnBothRanks(_TwoRanks):
    """Under DDP, every rank doubles the same gain through `.data`."""

    at = (150,)

    def edit(self) -> None:
        self.model.blocks[1].gate.data *= 2
        self.model.norm.weight.data[WIDTH // 2] *= 2


@case
class HeadAgainOnBothRanks(_TwoRanks):
    """Under DDP, every rank draws the same new head, through `.data`."""

    at = (161,)

    def edit(self) -> None:
        weight = self.model.head.weight
        weight.data = 0.05 * torch.randn(weight.shape, generator=self.random)


NOTHING: dict[str, type[Loop]] = {
    "nothing, transformer": Transformer,
    "nothing, classifier": Classifier,
    "nothing, images": Images,
}
"""The same loops without an edit: what is said here is not said because of one."""
