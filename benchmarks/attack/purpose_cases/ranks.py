"""What users do on purpose to all ranks of a run."""

import torch
from torch import nn

from benchmarks.attack.purpose_cases.loop import WIDTH, Transformer, case


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
