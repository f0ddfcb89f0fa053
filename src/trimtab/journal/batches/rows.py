"""KeptBatch: the token ids of one step's batch, and the losses of its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import NO_POSITION, FloatArray, IntArray
from trimtab.core.robust import median, sigma_around

TokenRows = NDArray[np.int32]
"""Token ids, one sequence a row; a negative id is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatch:
    """What is kept of the batch of one step."""

    tick: int
    step: int
    data_position: int = NO_POSITION
    """Of the first micro-batch; the others follow."""
    parts: tuple[TokenRows, ...] = ()
    """The token ids of each micro-batch."""
    losses: tuple[FloatArray, ...] = ()
    """For each micro-batch, a row per sequence: mean loss, largest loss of a token, and the place
    of that token. Empty if no losses of sequences were recorded."""

    row_ids: tuple[tuple[int, ...], ...] = ()
    """For each micro-batch, the numbers of its rows in the data, if the user gives them."""

    @property
    def num_bytes(self) -> int:
        return sum(rows.nbytes for rows in self.parts) + sum(rows.nbytes for rows in self.losses)

    @property
    def num_rows(self) -> int:
        return sum(len(part) for part in self.parts or self.losses)

    def position_of(self, part: int) -> int:
        return NO_POSITION if self.data_position == NO_POSITION else self.data_position + part

    def tokens(self) -> TokenRows:
        return flat_tokens(self.parts)


def flat_tokens(parts: Sequence[TokenRows]) -> TokenRows:
    """Return the token ids of these sequences in one flat array, without padding."""
    if not parts:
        return np.zeros(0, dtype=np.int32)
    flat = np.concatenate([part.reshape(-1) for part in parts])
    if flat.size and flat.min() < 0:  # looking costs a tenth of selecting
        flat = flat[flat >= 0]
    return flat


NGRAM = 4
"""Tokens of a repeated phrase. Source: the lab's repeated phrases have 1 to 4 tokens; in its text
the median sequence repeats none of this length."""

SIGMAS = 6.0
"""A sequence is unusual this many sigmas above the median of those before, and above all of them.
Source: the limit of the gate's loss (`GateThresholds.loss_sigmas`)."""

MIN_USUAL = 16
"""Values from before that are needed to say what is usual."""

_FLOORS = {"rarity": 0.05, "repetition": 0.1, "repeated": 0.1, "loss_gap": 0.05}
"""The scores that are judged, and the smallest sigma of each: sequences that are all alike have
none. So more than 0.6 of a sequence must repeat; tables in the lab's text reach 0.76 at times."""

_MAX_REPETITION = 0.6
"""Empty lines and rulers are equal in any text."""

_LARGEST = 1e9
"""Stands for an infinite score."""

_MULTIPLIERS = np.array([1, 1_000_003, 998_244_353, 6_700_417], dtype=np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What is usual for one score."""

    median: float
    sigma: float
    limit: float
    """A value above it is unusual."""

    @classmethod
    def of(cls, values: FloatArray, floor: float) -> "Usual | None":
        """Compute from the values before an incident; None if they are too few."""
        values = values[np.isfinite(values)]
        if len(values) < MIN_USUAL:
            return None
        middle = median(values.tolist())
        sigma = max(sigma_around(middle, values.tolist()), floor)
        return cls(median=middle, sigma=sigma, limit=max(middle + SIGMAS * sigma, values.max()))

    def excess(self, values: FloatArray) -> FloatArray:
        """Sigmas above the median where a value is unusual, else 0."""
        values = np.clip(np.where(np.isnan(values), -np.inf, values), -_LARGEST, _LARGEST)
        return np.where(values > self.limit, (values - self.median) / self.sigma, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """The scores of the sequences of some batches, in order."""

    batch: IntArray
    """Which of the batches each sequence belongs to."""
    part: IntArray
    row: IntArray
    """Its micro-batch and its row in it."""
    scores: dict[str, FloatArray]
    """By name, NaN where a score is not known:

    rarity      mean -log p of its tokens in the run
    repetition  share of its 4-grams that occurred in it before
    repeated    1 if the same sequence came before, else 0
    loss        its mean loss
    loss_gap    that above the median of its micro-batch, because after a bad update all losses are
                high; infinite for a loss that is not finite
    """


def score_rows(batches: Sequence[KeptBatch], run: IntArray, seen: set[int]) -> RowScores:
    """Score every sequence of these batches; `run` has a count for every id in them.

    `seen` has the hashes of earlier sequences; those of these batches are added.
    """
    places: list[tuple[int, int, int]] = []
    found: dict[str, list[FloatArray]] = {name: [] for name in (*_FLOORS, "loss")}
    surprise = -np.log((run + 1.0) / (run.sum() + len(run)))
    for index, batch in enumerate(batches):
        for part in range(max(len(batch.parts), len(batch.losses))):
            rows = batch.parts[part] if part < len(batch.parts) else None
            losses = batch.losses[part] if part < len(batch.losses) else None
            count = len(rows) if rows is not None else 0 if losses is None else len(losses)
            places += [(index, part, row) for row in range(count)]
            missing = np.full(count, np.nan)
            found["rarity"].append(missing if rows is None else rarity(rows, surprise))
            repeats = missing if rows is None else repetition(rows)
            found["repetition"].append(repeats)
            found["repeated"].append(missing if rows is None else _came_before(rows, repeats, seen))
            is_known = losses is not None and len(losses) == count
            loss = losses[:, 0] if losses is not None and is_known else missing
            found["loss"].append(loss)
            found["loss_gap"].append(_gaps(loss) if is_known else missing)
    columns = np.array(places, dtype=np.int64).reshape(-1, 3)
    none = np.zeros(0)
    return RowScores(
        batch=columns[:, 0],
        part=columns[:, 1],
        row=columns[:, 2],
        scores={name: np.concatenate([none, *values]) for name, values in found.items()},
    )


def _came_before(rows: TokenRows, repeats: FloatArray, seen: set[int]) -> FloatArray:
    """Return whether each sequence was seen before; one that only repeats itself does not count."""
    came: FloatArray = np.zeros(len(rows))
    for at, row in enumerate(rows):
        key = hash(row.tobytes())
        came[at] = key in seen and repeats[at] < _MAX_REPETITION
        seen.add(key)
    return came


def _gaps(losses: FloatArray) -> FloatArray:
    """Return how far each loss is above the median of all; infinite for one that is not finite."""
    is_finite = np.isfinite(losses)
    if not is_finite.any():
        return np.full(len(losses), np.nan)
    return np.where(is_finite, losses - np.median(losses[is_finite]), np.inf)


def usual_rows(scores: RowScores) -> dict[str, Usual]:
    """Return what is usual for each score that is judged, if it is known well enough."""
    found = {name: Usual.of(scores.scores[name], floor) for name, floor in _FLOORS.items()}
    return {name: usual for name, usual in found.items() if usual is not None}


def rarity(rows: TokenRows, surprise: FloatArray) -> FloatArray:
    """Return the mean surprise of each sequence's tokens; NaN if it has none."""
    is_token = rows >= 0
    total = (surprise[np.where(is_token, rows, 0)] * is_token).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: FloatArray = total / is_token.sum(axis=1)
    return mean


def repetition(rows: TokenRows) -> FloatArray:
    """Return the share of each sequence's 4-grams that occurred in it before."""
    length = rows.shape[1] - NGRAM + 1
    if length < 2:
        return np.zeros(len(rows))
    wide = rows.astype(np.uint64)
    keys = np.zeros((len(rows), length), dtype=np.uint64)
    is_text = np.ones((len(rows), length), dtype=bool)
    for offset, multiplier in enumerate(_MULTIPLIERS):
        keys += wide[:, offset : offset + length] * multiplier
        is_text &= rows[:, offset : offset + length] >= 0
    # Padding repeats itself and is no phrase: give each of its places a key of its own.
    keys = np.where(is_text, keys, np.uint64(2**63) + np.arange(length, dtype=np.uint64))
    keys.sort(axis=1)
    distinct = 1 + (keys[:, 1:] != keys[:, :-1]).sum(axis=1)
    num_text = is_text.sum(axis=1)
    repeated = length - distinct
    share: FloatArray = repeated / np.maximum(num_text, 1)
    return share
