"""BatchReport: what the batches around an incident look like, as values for every view."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.core.jsonable import number_from_json
from trimtab.journal.batches.rows import KeptBatch, RowScores, flat_tokens, score_rows, usual_rows
from trimtab.journal.batches.tokens import TokenShare, count_tokens, pad, unusual_tokens

Decode = Callable[[Sequence[int]], str]
"""The user's tokenizer: token ids to text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """One sequence of a batch."""

    data_position: int
    """Of its batch; negative if it is not known."""
    row: int
    """Its place in the batch, from 0."""
    reasons: tuple[str, ...]
    """Why it is unusual; empty if it is not."""
    rarity: float | None
    """Mean -log p of its tokens, p from the run before the incident."""
    repetition: float | None
    """The share of its 4-grams that occurred in it before."""
    loss: float | None
    """Its mean loss, if `record(token_loss=...)` gave it."""
    max_token_loss: float | None
    """The largest loss of one of its tokens."""
    max_loss_place: int | None
    """The place of that token in the sequence."""
    num_tokens: int
    token_ids: tuple[int, ...]
    """The first of its tokens."""
    text: str | None = None
    """The same tokens as text, if the user allows it."""
    row_id: int | None = None
    """Its number in the data, if `record(row_ids=...)` gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The batches around the onset of an incident, against the run before it."""

    onset_tick: int
    """Of the incident."""
    num_batches: int
    """Batches that were looked at."""
    num_run_tokens: int
    """Tokens of the run that they were compared with."""
    tick: int
    step: int
    data_position: int
    """The batch that this is about: the most unusual one, or that at the onset."""
    num_rows: int
    """Sequences in it, on the first rank."""
    num_unusual_rows: int
    unusual_positions: tuple[int, ...]
    """Data positions of all batches with unusual sequences."""
    usual: Mapping[str, float]
    """The median of each score over the sequences from before."""
    rows: tuple[RowReport, ...]
    """Its sequences, the most unusual first."""
    tokens: tuple[TokenShare, ...]
    """Tokens that its unusual sequences have too many of; of the whole batch if none is unusual."""

    def decoded(self, decode: Decode | None) -> "BatchReport":
        """Return a copy with its sequences and tokens as text; with None, as ids alone."""
        rows = tuple(
            dataclasses.replace(row, text=decode and str(decode(list(row.token_ids))))
            for row in self.rows
        )
        tokens = tuple(
            dataclasses.replace(token, text=decode and str(decode([token.id])))
            for token in self.tokens
        )
        return dataclasses.replace(self, rows=rows, tokens=tokens)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "BatchReport":
        """Read a report from JSON; raises KeyError, TypeError or ValueError if it is
        not one."""
        return cls(
            **{
                **_known(cls, saved),
                "unusual_positions": tuple(map(int, saved["unusual_positions"])),
                "usual": {str(name): float(value) for name, value in saved["usual"].items()},
                "rows": tuple(_row(part) for part in saved["rows"]),
                "tokens": tuple(TokenShare(**_known(TokenShare, t)) for t in saved["tokens"]),
            }
        )


def _row(saved: Mapping[str, Any]) -> RowReport:
    reasons, ids = tuple(map(str, saved["reasons"])), tuple(map(int, saved["token_ids"]))
    return RowReport(**{**_known(RowReport, saved), "reasons": reasons, "token_ids": ids})


def _known(cls: type[Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows; raises TypeError for a value of the wrong type."""
    fields = [f for f in dataclasses.fields(cls) if f.name in saved or f.default is MISSING]
    return {f.name: _checked(f.type, saved[f.name]) for f in fields}


def _checked(kind: Any, value: Any) -> Any:
    if value is None and kind in (float | None, int | None, str | None):
        return None
    if kind in (float, float | None):
        value = number_from_json(value)  # NaN and the infinities were saved as text
    for plain, kinds in ((float, (float, float | None)), (int, (int, int | None))):
        if kind in kinds and not isinstance(value, plain):
            raise TypeError(f"expected {plain.__name__}, got {type(value).__name__}")
    if kind in (str, str | None) and not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


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
    seen: set[int] = set()
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
            _row_report(
                batch, rows, at, [name for name in excess if is_odd[at] and excess[name][at] > 0]
            )
            for at in sorted(here.tolist(), key=lambda at: _order(rows, total, at))[:MAX_ROWS]
        ),
        tokens=unusual_tokens(counts, run, MAX_TOKENS),
    )


def _is_near(tick: int, kept: KeptBatches) -> bool:
    """Return whether a batch may have caused what was seen at the onset or at the peak."""
    near_onset = abs(tick - kept.onset_tick) <= MARGIN
    return near_onset or kept.peak_tick - MARGIN <= tick <= kept.peak_tick


def _choose(around: list[KeptBatch], rows: RowScores, total: FloatArray, onset_tick: int) -> int:
    """Choose the first batch about as unusual as the most unusual; else the one at the onset."""
    if total.any():
        sums = np.bincount(rows.batch, weights=total, minlength=len(around))
        return int(np.argmax(sums >= _NEARLY * sums.max()))
    ticks = np.array([batch.tick for batch in around])
    return min(int(np.searchsorted(ticks, onset_tick)), len(around) - 1)


def _order(rows: RowScores, total: FloatArray, at: int) -> tuple[float, float, float]:
    """Return a sort key: most unusual first, then highest loss, then rarest tokens."""
    loss, rare = rows.scores["loss"][at], rows.scores["rarity"][at]
    return -total[at], -np.nan_to_num(loss, nan=-1.0), -np.nan_to_num(rare, nan=-1.0)


def _row_report(batch: KeptBatch, rows: RowScores, at: int, names: list[str]) -> RowReport:
    part, row = int(rows.part[at]), int(rows.row[at])
    tokens = flat_tokens([batch.parts[part][row]]) if part < len(batch.parts) else np.zeros(0, int)
    has_loss = part < len(batch.losses) and row < len(batch.losses[part])
    losses = batch.losses[part][row].tolist() if has_loss else None
    ids = batch.row_ids[part] if part < len(batch.row_ids) else ()
    return RowReport(
        data_position=batch.position_of(part),
        row=row,
        reasons=tuple(REASONS[name] for name in names),
        rarity=_number_or_none(rows.scores["rarity"][at]),
        repetition=_number_or_none(rows.scores["repetition"][at]),
        loss=None if losses is None else losses[0],
        max_token_loss=None if losses is None else losses[1],
        max_loss_place=None if losses is None else int(losses[2]),
        num_tokens=len(tokens),
        token_ids=tuple(tokens[:MAX_TOKEN_IDS].tolist()),
        row_id=ids[row] if row < len(ids) else None,
    )


def _medians(rows: RowScores) -> dict[str, float]:
    finite = {
        name: rows.scores[name][np.isfinite(rows.scores[name])]
        for name in ("rarity", "repetition", "loss")
    }
    return {name: float(np.median(values)) for name, values in finite.items() if len(values)}


def _number_or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
