"""From the batches around an incident to what is unusual about them.

batches before the onset --> what is usual for a sequence, and for a group of batches
batches from the onset   --> unusual sequences --> their tokens against the run's
                         --> groups that stay different: the data mix has shifted
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.diagnose.batches.batch_report import BatchReport, MixShift, RowReport
from trimtab.diagnose.batches.kept_batch import KeptBatch, flat_tokens
from trimtab.diagnose.batches.row_scores import RowScores, Usual, score_rows, usual_rows
from trimtab.diagnose.batches.token_counts import (
    bands,
    count_tokens,
    divergence,
    pad,
    unusual_tokens,
)

MARGIN = 8
"""Steps before the onset that are looked at too: what a bad update did shows a step later."""

MAX_ROWS, MAX_TOKEN_IDS, MAX_TOKENS, MAX_POSITIONS = 8, 512, 8, 64
"""Sequences of a report, token ids of each, tokens that are named, positions that are listed."""

GROUP = 8
"""Batches in a group whose token counts are compared as one: a single batch of the lab has 256
tokens, too few for a histogram of 512."""

_GROUP_FLOOR = 0.002
"""The smallest sigma of the divergence of a group, in bits."""

REASONS = {"rarity": "rare tokens", "repetition": "repeated phrase", "loss": "high loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatches:
    """What was kept for one incident."""

    onset_tick: int
    usual: tuple[KeptBatch, ...]
    """Batches before the ones that are looked at."""
    around: tuple[KeptBatch, ...]
    """From a few steps before the onset on."""
    counts: IntArray
    """Token counts of the run before these."""


def examine(kept: KeptBatches) -> BatchReport | None:
    """Report on the batches of an incident; None if none was kept."""
    around = list(kept.around)
    if not around:
        return None
    parts = [part for batch in (*kept.usual, *around) for part in batch.parts]
    run = pad(kept.counts, 1 + max((int(part.max(initial=0)) for part in parts), default=0))
    usual = usual_rows(score_rows(list(kept.usual), run))
    rows = score_rows(around, run)
    excess = {name: limit.excess(rows.scores[name]) for name, limit in usual.items()}
    total: FloatArray = sum(excess.values(), np.zeros(len(rows.batch)))
    is_odd = total > 0
    chosen = _choose(around, rows, total, kept.onset_tick)
    batch = around[chosen]
    here = np.flatnonzero(rows.batch == chosen)
    odd = here[is_odd[here]]
    subject = [
        batch.parts[rows.part[at]][rows.row[at]]
        for at in (odd if len(odd) else here)
        if rows.part[at] < len(batch.parts)
    ]
    counts = count_tokens([flat_tokens(subject)], len(run))
    odd_batches = sorted(set(rows.batch[is_odd].tolist()))
    return BatchReport(
        onset_tick=kept.onset_tick,
        num_batches=len(around),
        num_run_tokens=int(run.sum()),
        tick=batch.tick,
        step=batch.step,
        data_position=batch.data_position,
        num_rows=batch.num_rows,
        num_unusual_rows=len(odd),
        unusual_positions=tuple(around[at].data_position for at in odd_batches[:MAX_POSITIONS]),
        usual={name: limit.median for name, limit in usual.items()},
        rows=tuple(
            _row(batch, rows, int(at), [name for name in excess if excess[name][at] > 0])
            for at in sorted(here.tolist(), key=lambda at: _order(rows, total, at))[:MAX_ROWS]
        ),
        tokens=unusual_tokens(counts, run, MAX_TOKENS),
        bands=bands(counts, run),
        shift=_shift(kept, run),
    )


def _choose(around: list[KeptBatch], rows: RowScores, total: FloatArray, onset_tick: int) -> int:
    """The batch with the most unusual sequences; else that at the onset."""
    if total.any():
        return int(np.argmax(np.bincount(rows.batch, weights=total, minlength=len(around))))
    ticks = np.array([batch.tick for batch in around])
    return min(int(np.searchsorted(ticks, onset_tick)), len(around) - 1)


def _order(rows: RowScores, total: FloatArray, at: int) -> tuple[float, float, float]:
    """The most unusual sequence first, then the highest loss, then the rarest tokens."""
    loss, rare = rows.scores["loss"][at], rows.scores["rarity"][at]
    return -total[at], -np.nan_to_num(loss, nan=-1.0), -np.nan_to_num(rare, nan=-1.0)


def _row(batch: KeptBatch, rows: RowScores, at: int, names: list[str]) -> RowReport:
    part, row = int(rows.part[at]), int(rows.row[at])
    tokens = flat_tokens([batch.parts[part][row]]) if part < len(batch.parts) else np.zeros(0, int)
    has_loss = not np.isnan(rows.scores["loss"][at])
    losses = batch.losses[part][row].tolist() if has_loss else None
    return RowReport(
        data_position=batch.position_of(part),
        row=row,
        reasons=tuple(REASONS[name] for name in names),
        rarity=_known(rows.scores["rarity"][at]),
        repetition=_known(rows.scores["repetition"][at]),
        loss=None if losses is None else losses[0],
        max_token_loss=None if losses is None else losses[1],
        max_loss_place=None if losses is None else int(losses[2]),
        num_tokens=len(tokens),
        token_ids=tuple(tokens[:MAX_TOKEN_IDS].tolist()),
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _shift(kept: KeptBatches, run: IntArray) -> MixShift | None:
    """Whether the groups of batches from the onset on stay different from those before."""
    after = [batch for batch in kept.around if batch.tick >= kept.onset_tick]
    groups, before = _groups(after, len(run)), _groups(kept.usual, len(run))
    usual = Usual.of(_divergences(before, run), _GROUP_FLOOR, min_values=4)
    if usual is None or len(groups) < 2:
        return None
    found = _divergences(groups, run)
    if not (found[len(found) // 2 :] > usual.limit).all():
        return None  # a few bad batches and then the usual ones are no shift
    counts = sum(groups, np.zeros(len(run), dtype=np.int64))
    return MixShift(
        data_position=after[0].data_position,
        num_batches=len(groups) * GROUP,
        divergence=float(np.median(found)),
        usual=usual.median,
        more=unusual_tokens(counts, run, MAX_TOKENS),
        fewer=unusual_tokens(counts, run, MAX_TOKENS, fewer=True),
    )


def _groups(batches: Sequence[KeptBatch], size: int) -> list[IntArray]:
    """Token counts of whole groups of consecutive batches."""
    starts = range(0, len(batches) - GROUP + 1, GROUP)
    groups = [count_tokens([b.tokens() for b in batches[s : s + GROUP]], size) for s in starts]
    return [group for group in groups if group.sum()]


def _divergences(groups: list[IntArray], run: IntArray) -> FloatArray:
    return np.array([divergence(group, run) for group in groups if run.sum()])
