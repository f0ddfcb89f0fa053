"""Evaluation: the loss on held-out text, over the same windows each time."""

import time
from dataclasses import dataclass

import torch

from trimtab.lab.corpus.data import DataConfig, WindowDataset
from trimtab.lab.corpus.shards import Split, TokenCorpus
from trimtab.lab.trainer.engines import Forward, Ranks
from trimtab.lab.trainer.train_config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation."""

    loss: float
    """Mean cross-entropy over the held-out windows."""

    seconds: float
    """How long training was paused for it."""


class Evaluator:
    """Evaluates a model; all ranks must call it together."""

    def __init__(self, corpus: TokenCorpus, config: TrainConfig, ranks: Ranks) -> None:
        data = DataConfig(batch_size=config.micro_batch_size, length=config.length)
        held_out = WindowDataset(
            corpus, data, split=Split.HELD_OUT, rank=ranks.rank, world_size=ranks.size
        )
        self._batches = [held_out[position] for position in range(config.eval_batches)]
        self._dtype = config.dtype
        self._ranks = ranks

    @torch.no_grad()
    def evaluate(self, forward: Forward) -> Evaluation:
        """The mean loss over the held-out batches; synchronizes with the device."""
        started = time.perf_counter()
        device = self._ranks.device
        total = torch.zeros((), device=device)
        for batch in (batch.to(device) for batch in self._batches):
            with self._dtype.autocast(device):
                total += forward(batch.tokens, batch.targets).cross_entropy
        loss = self._ranks.mean(total / len(self._batches)).item()
        return Evaluation(loss=loss, seconds=time.perf_counter() - started)
