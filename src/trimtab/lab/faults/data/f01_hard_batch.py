"""F01: a batch of real tokens in an order that no model can predict."""

import dataclasses

import torch

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_batches


class HardBatch(Disturbance):
    """For one step, the windows of a batch are shuffled inside: every token common, none likely."""

    cause = Cause.HARD_BATCH
    title = "a batch whose tokens are in random order"
    strength_name = "share of its windows"
    heals = True

    @property
    def steps(self) -> int:
        """A single batch."""
        return 1

    @property
    def strength(self) -> float:
        """From a quarter of the batch to all of it."""
        return between(0.25, 1.0, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Shuffle the batch of the onset."""
        return change_batches(parts.run, self._change)

    def _change(self, step: int, batch: Batch) -> Batch:
        if not self.covers(step):
            return batch
        rows = max(1, round(self.strength * len(batch.tokens)))
        tokens, targets = batch.tokens.clone(), batch.targets.clone()
        random = self.random
        for row in range(rows):
            window = torch.cat((tokens[row], targets[row, -1:]))
            window = window[torch.from_numpy(random.permutation(len(window)))]
            tokens[row], targets[row] = window[:-1], window[1:]
        self.truth.setdefault("data_positions", []).append(batch.position)
        self.truth["rows"] = rows
        return dataclasses.replace(batch, tokens=tokens, targets=targets)
