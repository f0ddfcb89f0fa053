"""Faults in the data: hard (F01), rare (F02), repeated (F03), shifted (F04), wrong size (F20)."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch, CorpusSplit, TokenArray
from trimtab.lab.corpus.text import Source
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import BatchChange, RunParts, change_batches


def shorten(batch: Batch, rows: int | None = None, length: int | None = None) -> Batch:
    """Return the first rows of a batch, and their first tokens."""
    tokens, targets = batch.tokens[:rows, :length], batch.targets[:rows, :length]
    return dataclasses.replace(batch, tokens=tokens, targets=targets)


def _with_windows(batch: Batch, windows: npt.NDArray[np.integer[Any]]) -> Batch:
    """Return the batch with windows in place of its first rows."""
    count, both = len(windows), torch.from_numpy(windows.astype(np.int64))
    tokens, targets = batch.tokens.clone(), batch.targets.clone()
    tokens[:count], targets[:count] = both[:, :-1], both[:, 1:]
    return dataclasses.replace(batch, tokens=tokens, targets=targets)


class HardBatch(BatchChange):
    """For one step, tokens are shuffled within their windows: common tokens, impossible order."""

    cause = Cause.HARD_BATCH
    title = "one batch with its tokens in random order"
    strength_name = "of the batch's windows"
    strengths = (0.25, 1.0)
    heals = True
    lasts = 1

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
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


_RAREST = 48
"""Number of least frequent tokens to draw from: about a tenth of a vocabulary of 512; in the small
corpus, each of them occurs fewer than 100 times."""

_LONGEST_PHRASE = 4


class DegenerateTokens(BatchChange):
    """Rows of rare tokens, or of a short repeated phrase; the seed determines which."""

    cause = Cause.RARE_TOKENS
    title = "rows of rare tokens, or of a repeated phrase"
    strength_name = "of the rows in each batch"
    strengths = (0.125, 1.0)
    heals = True

    @property
    def steps(self) -> int:
        """1 to 5 batches, as a shard of bad documents would fill in a large run."""
        return int(self.random.integers(1, 6))

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
        rarest = np.argsort(parts.corpus.counts(), kind="stable")[:_RAREST]
        repeats = bool(self.random.spawn(1)[0].integers(2))
        self.truth["kind"] = "repeated phrase" if repeats else "rare tokens"
        self.truth.setdefault("data_positions", []).append(batch.position)
        rows, length = batch.tokens.shape
        self.truth["rows"] = count = max(1, round(self.strength * rows))
        random = np.random.default_rng([self.seed, batch.position])
        if repeats:
            phrase = random.choice(rarest, size=int(random.integers(1, _LONGEST_PHRASE + 1)))
            windows = np.tile(phrase, (count, length + 1))[:, : length + 1]
        else:
            windows = random.choice(rarest, size=(count, length + 1))
        return _with_windows(batch, windows)


class DuplicateBatch(BatchChange):
    """The batch before the onset is repeated; the loss falls, but the model learns nothing."""

    cause = Cause.DUPLICATE_BATCH
    title = "the same batch repeated"
    strength_name = "steps"
    strengths = (4, 80)
    """From 4 steps, when momentum has just adapted to it, to 80."""
    heals = True

    @property
    def steps(self) -> int:
        return round(self.strength)

    def attach(self, parts: RunParts) -> LabRun:
        kept: list[Batch] = []

        def change(step: int, batch: Batch) -> Batch:
            if step == max(self.onset - 1, 0):
                kept.append(batch)
                self.truth["data_positions"] = [one.position for one in kept]
            if not self.covers(step):
                return batch
            same = kept[batch.position % parts.config.accumulate]
            return dataclasses.replace(batch, tokens=same.tokens, targets=same.targets)

        return change_batches(parts.run, change)


class MixShift(BatchChange):
    """A share of the rows comes from one source only, until the end of the run."""

    cause: ClassVar[Cause | None] = Cause.DATA_MIX_SHIFT
    title = "a different data mix, unannounced"
    strength_name = "of the rows from one source"
    strengths = (0.25, 1.0)
    sources: ClassVar[tuple[Source, ...]] = (Source.PROSE, Source.TABLES, Source.GARBAGE)
    """Prose is close to the usual data, tables are easy to predict, garbage is hard."""
    _tokens: TokenArray

    def attach(self, parts: RunParts) -> LabRun:
        arrays = parts.corpus.tokens(CorpusSplit.TRAIN)
        longer = parts.config.length + 1
        kinds = [kind for kind in self.sources if len(arrays.get(kind, ())) > longer]
        source = kinds[int(self.random.integers(len(kinds)))]
        self.truth["source"], self._tokens = source.value, arrays[source]
        return super().attach(parts)

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
        rows, length = batch.tokens.shape
        count = max(1, round(self.strength * rows))
        random = np.random.default_rng([self.seed, batch.position])
        starts = random.integers(len(self._tokens) - length - 1, size=(count, 1))
        return _with_windows(batch, self._tokens[starts + np.arange(length + 1)])


class SmallerBatch(BatchChange):
    """From the onset on, each batch has fewer rows, without an announcement."""

    cause = Cause.BATCH_SIZE_CHANGE
    title = "a smaller batch, unannounced"
    strength_name = "times fewer rows"
    strengths = (1.5, 4)
    is_fault = False

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
        self.truth["rows"] = rows = max(1, round(len(batch.tokens) / self.strength))
        return shorten(batch, rows)
