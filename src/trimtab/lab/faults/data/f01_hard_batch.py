"""F01: a batch of real tokens in random order, which no model can predict."""

import dataclasses

import torch

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class HardBatch(Intervention):
    """For one step, tokens are shuffled within their windows: common tokens, impossible order."""

    cause = Cause.HARD_BATCH
    clock = Clock.DATA
    title = "one batch with its tokens in random order"
    strength_name = "of the batch's windows"
    heals = True

    @property
    def steps(self) -> int:
        """A single batch."""
        return 1

    @property
    def strength(self) -> float:
        """From a quarter of the batch to all of it."""
        return interpolate(0.25, 1.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
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
