"""F02: some batches in a row of tokens that hardly ever occur, or of one phrase over and over."""

import dataclasses
from typing import Any

import numpy as np
import torch

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_batches

_RAREST = 48
"""How many of the least frequent tokens are drawn from: about a tenth of a vocabulary of 512, where
the small corpus has that many with fewer than 100 occurrences."""

_LONGEST_PHRASE = 4


class DegenerateTokens(Disturbance):
    """Rows of rare tokens, or of a short phrase repeated; the seed decides which."""

    cause = Cause.RARE_TOKENS
    title = "rows of rare tokens, or of a phrase repeated"
    strength_name = "share of the rows of each batch"
    heals = True

    @property
    def steps(self) -> int:
        """1 to 5 batches: what a shard of bad documents is for a large batch."""
        return int(self.random.integers(1, 6))

    @property
    def strength(self) -> float:
        """From an eighth of the rows to all of them."""
        return between(0.125, 1.0, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Replace rows in the batches between onset and end."""
        counts = parts.corpus.counts()
        rarest = np.argsort(counts, kind="stable")[:_RAREST]
        repeats = bool(self.random.spawn(1)[0].integers(2))
        self.truth |= {
            "kind": "repeated phrase" if repeats else "rare tokens",
            "data_positions": [],
        }

        def change(step: int, batch: Batch) -> Batch:
            if not self.covers(step):
                return batch
            self.truth["data_positions"].append(batch.position)
            return self._replace_rows(batch, rarest, repeats)

        return change_batches(parts.run, change)

    def _replace_rows(self, batch: Batch, rarest: Any, repeats: bool) -> Batch:
        rows, length = batch.tokens.shape
        count = max(1, round(self.strength * rows))
        random = np.random.default_rng([self.seed, batch.position])
        if repeats:
            phrase = random.choice(rarest, size=int(random.integers(1, _LONGEST_PHRASE + 1)))
            windows = np.tile(phrase, (count, length + 1))[:, : length + 1]
        else:
            windows = random.choice(rarest, size=(count, length + 1))
        both = torch.from_numpy(windows.astype(np.int64))
        tokens, targets = batch.tokens.clone(), batch.targets.clone()
        tokens[:count], targets[:count] = both[:, :-1], both[:, 1:]
        return dataclasses.replace(batch, tokens=tokens, targets=targets)
