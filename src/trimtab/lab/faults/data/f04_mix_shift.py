"""F04: from some step on, a different kind of text."""

import dataclasses
from typing import ClassVar

import numpy as np
import torch

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.corpus.shards import Split, TokenArray
from trimtab.lab.corpus.text import Source
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class MixShift(Intervention):
    """A share of the rows comes from one source only, until the end of the run."""

    cause: ClassVar[Cause | None] = Cause.DATA_MIX_SHIFT
    clock = Clock.DATA
    title = "a different data mix, unannounced"
    strength_name = "of the rows from one source"
    sources: ClassVar[tuple[Source, ...]] = (Source.PROSE, Source.TABLES, Source.GARBAGE)
    """Prose is close to the usual data, tables are easy to predict, garbage is hard."""

    @property
    def strength(self) -> float:
        """From a quarter of the rows to all."""
        return interpolate(0.25, 1.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Replace rows with windows from one source, from the onset on."""
        arrays = parts.corpus.tokens(Split.TRAIN)
        longer = parts.config.length + 1
        kinds = [kind for kind in self.sources if len(arrays.get(kind, ())) > longer]
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
