"""F02: a few consecutive batches of rare tokens, or of one phrase repeated."""

import dataclasses
from typing import Any

import numpy as np
import torch

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock

_RAREST = 48
"""Number of least frequent tokens to draw from: about a tenth of a vocabulary of 512; in the small
corpus, each of them occurs fewer than 100 times."""

_LONGEST_PHRASE = 4


class DegenerateTokens(Intervention):
    """Rows of rare tokens, or of a short repeated phrase; the seed determines which."""

    cause = Cause.RARE_TOKENS
    clock = Clock.DATA
    title = "rows of rare tokens, or of a repeated phrase"
    strength_name = "of the rows in each batch"
    heals = True

    @property
    def steps(self) -> int:
        """1 to 5 batches, as a shard of bad documents would fill in a large run."""
        return int(self.random.integers(1, 6))

    @property
    def strength(self) -> float:
        """From an eighth of the rows to all of them."""
        return interpolate(0.125, 1.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Replace rows in the batches from onset to end."""
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
        self.truth["rows"] = count
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
