"""From the batches around an incident to what is unusual about them.

batches before the onset --> what is usual for a sequence
batches at the onset     --> unusual sequences --> their tokens against the run's
all of them              --> where the data mix has shifted
"""

from dataclasses import dataclass

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.explain.batches.batch_report import BatchReport, RowReport
from trimtab.explain.batches.kept_batch import KeptBatch, flat_tokens
from trimtab.explain.batches.mix_shift import find_shift
from trimtab.explain.batches.row_scores import RowScores, score_rows, usual_rows
from trimtab.explain.batches.token_counts import (
    bands,
    count_tokens,
    pad,
    unusual_tokens,
)

MARGIN = 8
"""Steps before and after the onset whose sequences are looked at: what a bad update did shows a
step later, and bad batches come in a row. Source: bad shards of the lab have 1 to 5 batches."""

MAX_ROWS, MAX_TOKEN_IDS, MAX_TOKENS, MAX_POSITIONS = 8, 512, 8, 64
"""Sequences of a report, token ids of each, tokens that are named, positions that are listed."""

_NEARLY = 0.7
"""Of several bad batches in a row the first is reported, if it is this unusual."""

REASONS = {
    "rarity": "rare tokens",
    "repetition": "repeated phrase",
    "repeated": "same as an earlier row",
    "loss_gap": "high loss",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatches:
    """What was kept for one incident."""

    onset_tick: int
    peak_tick: int
    before: tuple[KeptBatch, ...]
    """Batches before those that are looked at."""
    around: tuple[KeptBatch, ...]
    """From a few steps before the onset on."""
    counts: IntArray
    """Token counts of the run before all of these."""


def examine(kept: KeptBatches) -> BatchReport | None:
    """Report on the batches of an incident; None if none was kept."""
    around = [batch for batch in kept.around if _is_near(batch.tick, kept)]
    if not around:
        return None
    every = (*kept.before, *kept.around)
    parts = [part for batch in every for part in batch.parts]
    size = 1 + max((int(part.max(initial=0)) for part in parts), default=0)
    earlier = pad(kept.counts, size)
    run = earlier + count_tokens([batch.tokens() for batch in kept.before], len(earlier))
    seen: dict[int, tuple[int, int]] = {}
    before, rows = score_rows(kept.before, run, seen), score_rows(around, run, seen)
    usual = usual_rows(before)
    excess = {name: limit.excess(rows.scores[name]) for name, limit in usual.items()}
    nothing = np.zeros(len(rows.batch))
    loss_gap = excess.get("loss_gap", nothing)
    total: FloatArray = sum(excess.values(), nothing) - loss_gap
    if not total.any():  # what sequences are made of says more than what became of them
        total = loss_gap
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
        num_batches=len(kept.around),
        num_run_tokens=int(run.sum()),
        tick=batch.tick,
        step=batch.step,
        data_position=batch.data_position,
        num_rows=batch.num_rows,
        num_unusual_rows=len(odd),
        unusual_positions=tuple(around[at].data_position for at in odd_batches[:MAX_POSITIONS]),
        usual=_medians(before),
        rows=tuple(
            _row(batch, rows, at, [name for name in excess if is_odd[at] and excess[name][at] > 0])
            for at in sorted(here.tolist(), key=lambda at: _order(rows, total, at))[:MAX_ROWS]
        ),
        tokens=unusual_tokens(counts, run, MAX_TOKENS),
        bands=bands(counts, run),
        shift=find_shift(every, earlier, MAX_TOKENS),
    )


def _is_near(tick: int, kept: KeptBatches) -> bool:
    """Whether a batch may have caused what was seen at the onset or at the peak."""
    near_onset = abs(tick - kept.onset_tick) <= MARGIN
    return near_onset or kept.peak_tick - MARGIN <= tick <= kept.peak_tick


def _choose(around: list[KeptBatch], rows: RowScores, total: FloatArray, onset_tick: int) -> int:
    """The first batch that is about as unusual as any; if none is, that at the onset."""
    if total.any():
        sums = np.bincount(rows.batch, weights=total, minlength=len(around))
        return int(np.argmax(sums >= _NEARLY * sums.max()))
    ticks = np.array([batch.tick for batch in around])
    return min(int(np.searchsorted(ticks, onset_tick)), len(around) - 1)


def _order(rows: RowScores, total: FloatArray, at: int) -> tuple[float, float, float]:
    """The most unusual sequence first, then the highest loss, then the rarest tokens."""
    loss, rare = rows.scores["loss"][at], rows.scores["rarity"][at]
    return -total[at], -np.nan_to_num(loss, nan=-1.0), -np.nan_to_num(rare, nan=-1.0)


def _row(batch: KeptBatch, rows: RowScores, at: int, names: list[str]) -> RowReport:
    part, row = int(rows.part[at]), int(rows.row[at])
    tokens = flat_tokens([batch.parts[part][row]]) if part < len(batch.parts) else np.zeros(0, int)
    has_loss = part < len(batch.losses) and row < len(batch.losses[part])
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


def _medians(rows: RowScores) -> dict[str, float]:
    """The usual value of each score that is shown."""
    finite = {
        name: rows.scores[name][np.isfinite(rows.scores[name])]
        for name in ("rarity", "repetition", "loss")
    }
    return {name: float(np.median(values)) for name, values in finite.items() if len(values)}


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
