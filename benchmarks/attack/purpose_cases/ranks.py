"""What users do on purpose to all ranks of a run."""

import torch
from torch import nn

from benchmarks.attack.purpose_cases.loop import WIDTH, Transformer, purpose


class _TwoRanks(Transformer):
    """The loop under DistributedDataParallel."""

    ranks = 2

    def prepare(self) -> None:
        self.parallel = nn.parallel.DistributedDataParallel(self.model)

    def loss(self) -> torch.Tensor:
        tokens = self.batch()
        return self.criterion(self.parallel(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@purpose(_TwoRanks, at=(150,))
def edited_on_both_ranks(run: _TwoRanks) -> None:
    """Under DDP, every rank doubles the same gain through `.data`."""
    run.model.blocks[1].gate.data *= 2
    run.model.norm.weight.data[WIDTH // 2] *= 2


@purpose(_TwoRanks, at=(161,))
def head_again_on_both_ranks(run: _TwoRanks) -> None:
    """Under DDP, every rank draws the same new head, through `.data`."""
    weight = run.model.head.weight
    weight.data = 0.05 * torch.randn(weight.shape, generator=run.random)
