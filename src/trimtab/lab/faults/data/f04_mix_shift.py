"""F04: from some step on, another kind of text."""

import dataclasses
from typing import ClassVar

import numpy as np
import torch

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.corpus.shards import Split, TokenArray
from trimtab.lab.corpus.text import Source
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_batches

_KINDS = (Source.PROSE, Source.TABLES, Source.GARBAGE)
"""Prose is near to what the run has seen, tables are nearly free to predict, garbage is not."""


class MixShift(Disturbance):
    """A share of the rows comes from one source only, until the run ends."""

    cause: ClassVar[Cause | None] = Cause.DATA_MIX_SHIFT
    title = "another mix of data, unannounced"
    strength_name = "share of the rows that are of one source"

    @property
    def strength(self) -> float:
        """From a quarter of the rows to all."""
        return between(0.25, 1.0, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Replace rows by windows of one source, from the onset on."""
        arrays = parts.corpus.tokens(Split.TRAIN)
        longer = parts.config.length + 1
        kinds = [kind for kind in _KINDS if len(arrays.get(kind, ())) > longer]
        source = kinds[int(self.random.integers(len(kinds)))]
        self.truth["source"] = source.value

        def change(step: int, batch: Batch) -> Batch:
            return self._replace_rows(batch, arrays[source]) if self.covers(step) else batch

        return change_batches(parts.run, change)

    def _replace_rows(self, batch: Batch, array: TokenArray) -> Batch:
        rows, length = batch.tokens.shape
        count = max(1, round(self.strength * rows))
        random = np.random.default_rng([self.seed, batch.position])
        starts = random.integers(len(array) - length - 1, size=(count, 1))
        both = torch.from_numpy(array[starts + np.arange(length + 1)].astype(np.int64))
        tokens, targets = batch.tokens.clone(), batch.targets.clone()
        tokens[:count], targets[:count] = both[:, :-1], both[:, 1:]
        return dataclasses.replace(batch, tokens=tokens, targets=targets)
