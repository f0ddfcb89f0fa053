"""Whether the tokens of many batches differ from those before, and since when.

The batches are split where the two sides differ most. How large that difference is by chance comes
from the same batches in a random order, so it holds for any batch size and any kind of text.
"""

from collections.abc import Sequence

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.explain.batches.batch_report import MixShift
from trimtab.explain.batches.kept_batch import KeptBatch
from trimtab.explain.batches.token_counts import (
    bands,
    count_tokens,
    divergence,
    unusual_tokens,
)

MIN_SIDE = 16
"""Batches on either side of a split: fewer are bad batches, not a different mix."""

MAX_KINDS = 512
"""The most frequent tokens are compared one by one, all others as one."""

SHUFFLES, SIGMAS = 24, 12.0
"""Random orders, and sigmas above their mean from which a difference is a shift. Source: tune seeds
of the lab, where shifts reach 49 and more, a few repeats of one batch 11, and other incidents 7."""

_STRIDE = 4
"""In a random order, splits are tried at every fourth batch."""


def find_shift(batches: Sequence[KeptBatch], run: IntArray, max_tokens: int) -> MixShift | None:
    """The shift of the mix among these batches; `run` has the counts of the run before them."""
    batches = [batch for batch in batches if any((rows >= 0).any() for rows in batch.parts)]
    if len(batches) < 2 * MIN_SIDE:
        return None
    table = _table(batches, len(run))
    random = np.random.default_rng(0)
    split, score = _best_split(table, 1)
    orders = [random.permutation(len(table)) for _ in range(SHUFFLES)]
    if score < _limit([_best_split(table[order], _STRIDE)[1] for order in orders]):
        return None
    # A few bad batches in the middle are no shift: the later half must differ as well.
    later = split + (len(table) - split) // 2
    chance = [_difference(table[order], split, later) for order in orders]
    if _difference(table, split, later) < _limit(chance):
        return None
    size = len(run)
    before = run + count_tokens([batch.tokens() for batch in batches[:split]], size)
    after = count_tokens([batch.tokens() for batch in batches[split:]], size)
    return MixShift(
        step=batches[split].step,
        data_position=batches[split].data_position,
        num_batches=len(batches) - split,
        divergence=_difference(table, split, split),
        usual=float(np.mean([_difference(table[order], split, split) for order in orders])),
        more=unusual_tokens(after, before, max_tokens),
        fewer=unusual_tokens(after, before, max_tokens, fewer=True),
        bands=bands(after, before),
    )


def _table(batches: Sequence[KeptBatch], size: int) -> IntArray:
    """A row of token counts for each batch; rare tokens share the last column."""
    tokens = [batch.tokens() for batch in batches]
    total = count_tokens(tokens, size)
    column = np.full(size, min(MAX_KINDS, size))
    frequent = np.argsort(-total, kind="stable")[:MAX_KINDS]
    column[frequent] = np.arange(len(frequent))
    return np.stack([count_tokens([column[ids]], len(frequent) + 1) for ids in tokens])


def _best_split(table: IntArray, stride: int) -> tuple[int, float]:
    """Where the batches before and after differ most, and by how much."""
    splits = np.arange(MIN_SIDE, len(table) - MIN_SIDE + 1, stride)
    sums = np.cumsum(table, axis=0)
    before = sums[splits - 1]
    scores = divergence(before, sums[-1] - before) * splits * (len(table) - splits)
    best = int(np.argmax(scores))
    return int(splits[best]), float(scores[best])


def _difference(table: IntArray, split: int, later: int) -> float:
    return float(divergence(table[:split].sum(axis=0), table[later:].sum(axis=0)))


def _limit(chance: list[float]) -> float:
    """What chance does not reach."""
    values: FloatArray = np.array(chance)
    return float(values.mean() + SIGMAS * max(values.std(), 0.02 * values.mean()))
