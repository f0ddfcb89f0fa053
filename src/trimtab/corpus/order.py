"""The order of the data: stretches of batches that are alike, and batches that are odd together.

In data that is well shuffled, a batch is like the next one as much as like any other. Batches are
compared by their shares of tokens, as deviations from those of all batches: the cosine of two is 0
on average, and near 1 where both hold the same text, source or language.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.core.block import IntArray
from trimtab.core.errors import ConfigError, CorpusError
from trimtab.core.robust import median, sigma_around
from trimtab.corpus.counting import Tokens
from trimtab.corpus.options import ScanOptions
from trimtab.corpus.spread import Ids
from trimtab.corpus.token_files import FlatFile, find_files, open_file
from trimtab.journal.batches.batch_report import BatchReport, KeptBatches, examine
from trimtab.journal.batches.rows import KeptBatch

BUCKETS = 1024
"""Tokens are counted by id modulo this number: enough to tell texts apart."""

MAX_ANCHORS = 2048
"""Batches that are compared with the one after them and with each other. Smaller data is read
whole; of larger data pairs that are evenly spread, and a pocket between two pairs is not seen."""

MIN_BATCHES = 32

MAX_ROWS = 64
"""Rows of a batch that are read."""

LEAST_COSINE, MIN_ERRORS = 0.05, 5.0
"""What neighbours must have in common beyond random pairs: a twentieth of their deviation, and five
standard errors. Chosen by the lab's text alone, 3,886 batches: 60 shuffles reach 0.01, a shuffle
buffer of a third of it 0.04 (not reported), one of 3 % 0.21, files as they are stored 0.48."""

ODD_SIGMAS = 8.0
"""A pocket is batches in a row whose deviation is this many sigmas larger than usual. Chosen."""


class RowSequence(Protocol):
    """Rows of token ids, in the order in which a run reads them."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> ArrayLike: ...


class FileRows:
    """The rows of token files: windows of a length, or the rows of an array of two dimensions."""

    def __init__(self, files: Sequence[FlatFile], length: int, order: Ids | None = None) -> None:
        self._files = files
        self._lengths = [file.row_length or length for file in files]
        sizes = [file.size // long for file, long in zip(files, self._lengths, strict=True)]
        self._ends = np.cumsum(sizes)
        self._order = order
        total = int(self._ends[-1])
        self._size = total if order is None else len(order)
        if order is not None and (order.max(initial=-1) >= total or order.min(initial=0) < 0):
            raise ConfigError(f"the order names row {order.max()}; the files have {total}")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int) -> Tokens:
        file, first = self._find(at)
        with self._files[file].opened() as reader:
            return reader.read(first, first + self._lengths[file]).copy()

    def place(self, at: int) -> str:
        """Return file and token at which a row begins."""
        file, first = self._find(at)
        return f"{self._files[file].path}:{first}"

    def _find(self, at: int) -> tuple[int, int]:
        row = at if self._order is None else int(self._order[at])
        file = int(np.searchsorted(self._ends, row, side="right"))
        before = int(self._ends[file - 1]) if file else 0
        return file, (row - before) * self._lengths[file]


def open_rows(
    paths: Sequence[Path], options: ScanOptions, length: int, order: Path | None = None
) -> FileRows:
    """Open token files as rows, as they are stored or in the order of an `.npy` of row numbers."""
    files = [open_file(path, options) for path, _ in find_files(paths)]
    flat = [file for file in files if isinstance(file, FlatFile)]
    if len(flat) < len(files):
        raise CorpusError(
            "rows of parquet, arrow and jsonl files have no fixed place; give their tokens to "
            "trimtab.corpus.check_order"
        )
    if order is None:
        return FileRows(flat, length)
    try:
        rows = np.load(order, allow_pickle=False, max_header_size=10_000)
    except (OSError, ValueError) as error:
        raise CorpusError(f"{order} is not a readable .npy file: {error}") from error
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise CorpusError(f"{order} holds {rows.dtype} of shape {rows.shape}, not row numbers")
    return FileRows(flat, length, rows.astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How much batches at a distance have in common, beyond random pairs."""

    distance: int
    """In batches."""
    cosine: float
    errors: float
    """The same in standard errors."""

    @property
    def is_ordered(self) -> bool:
        """Whether it is more than chance."""
        return self.cosine >= LEAST_COSINE and self.errors >= MIN_ERRORS


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCheck:
    """What was found in an order."""

    num_batches: int
    likeness: tuple[Likeness, ...]
    """By growing distance."""
    pockets: tuple[tuple[int, int], ...]
    """Batches, first and last, that are odd together."""

    @property
    def stretch(self) -> int:
        """The distance in batches up to which batches are alike; 0 if neighbours are not."""
        near = list(takewhile(lambda one: one.is_ordered, self.likeness))
        return near[-1].distance if near else 0

    @property
    def is_shuffled(self) -> bool:
        """Whether neighbours are not alike, and no batches are odd together."""
        return not self.stretch and not self.pockets


def check_order(rows: RowSequence, batch_rows: int) -> OrderCheck:
    """Compare the batches of an order with the ones after them, and with random ones.

    Args:
        rows: Token ids of each row, in the order of the run.
        batch_rows: Rows of a step, over all ranks and micro-batches.
    """
    num_batches = len(rows) // batch_rows
    if num_batches < MIN_BATCHES:
        raise CorpusError(f"{num_batches} batches are too few to judge; {MIN_BATCHES} are needed")
    anchors = np.unique(np.linspace(0, num_batches - 2, MAX_ANCHORS).astype(np.int64))
    here, after = (_profiles(rows, chosen, batch_rows) for chosen in (anchors, anchors + 1))
    middle = here.mean(axis=0)
    here, after = here - middle, after - middle
    sizes = np.linalg.norm(here, axis=1), np.linalg.norm(after, axis=1)
    shuffled = np.random.default_rng(0).permutation(len(anchors))
    random = _cosines(here, here[shuffled])[shuffled != np.arange(len(anchors))]
    likeness = [_likeness(1, _cosines(here, after), random)]
    lag, spacing = 1, (num_batches - 2) / max(len(anchors) - 1, 1)
    while lag <= len(anchors) // 2:
        if (distance := round(lag * spacing)) > 1:
            likeness.append(_likeness(distance, _cosines(here[:-lag], here[lag:]), random))
        lag *= 2
    usual = median(sizes[0].tolist())
    limit = usual + ODD_SIGMAS * sigma_around(usual, sizes[0].tolist())
    is_odd = (sizes[0] > limit) & (sizes[1] > limit)
    return OrderCheck(
        num_batches=num_batches, likeness=tuple(likeness), pockets=tuple(_pockets(anchors, is_odd))
    )


def _profiles(rows: RowSequence, batches: Ids, batch_rows: int) -> NDArray[np.float64]:
    """Return the roots of the shares of tokens in batches: noise is alike in all of them then."""
    inside = np.unique(np.linspace(0, batch_rows - 1, min(batch_rows, MAX_ROWS)).astype(np.int64))
    found = np.zeros((len(batches), BUCKETS))
    for at, batch in enumerate(batches.tolist()):
        parts = [np.asarray(rows[batch * batch_rows + row]).ravel() for row in inside.tolist()]
        tokens = np.concatenate(parts).astype(np.int64)
        counts = np.bincount(tokens[tokens >= 0] % BUCKETS, minlength=BUCKETS)
        found[at] = np.sqrt(counts / max(counts.sum(), 1))
    return found


def _cosines(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: NDArray[np.float64] = (one * other).sum(axis=1) / np.maximum(sizes, 1e-12)
    return cosines


def _likeness(distance: int, near: NDArray[np.float64], random: NDArray[np.float64]) -> Likeness:
    difference = float(near.mean() - random.mean())
    error = float(np.sqrt(near.var() / len(near) + random.var() / len(random)))
    return Likeness(distance=distance, cosine=difference, errors=difference / max(error, 1e-12))


def _pockets(anchors: Ids, is_odd: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_odd, [False]))))
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield int(anchors[first]), int(anchors[end - 1]) + 1


# The batch of one step, examined from the data files alone

BASE_BATCHES = 64
"""Batches spread over the data that tell what is usual, for the rows of one step."""


def examine_step(
    rows: RowSequence, step_rows: int, step: int, counts: IntArray | None = None
) -> BatchReport:
    """Report on the rows of one step of a run, from its data; a row's position is its number.

    Args:
        rows: Token ids, in the order of the run.
        step_rows: Rows of a step.
        step: Which one.
        counts: How often each token occurs in the whole data; None: as in a sample of it.
    """
    num_steps = len(rows) // step_rows
    if step >= num_steps:
        raise ConfigError(f"step {step} is beyond the {num_steps} steps of the data")

    def batch(at: int) -> KeptBatch:
        chosen = range(at * step_rows, (at + 1) * step_rows)
        parts = tuple(np.asarray(rows[row], dtype=np.int32).reshape(1, -1) for row in chosen)
        return KeptBatch(tick=at, step=at, data_position=0, parts=parts)

    spread = np.unique(np.linspace(0, num_steps - 1, BASE_BATCHES).astype(int)).tolist()
    report = examine(
        KeptBatches(
            onset_tick=step,
            peak_tick=step,
            before=tuple(batch(at) for at in spread if at != step),
            around=(batch(step),),
            counts=np.zeros(0, dtype=np.int64) if counts is None else counts,
        )
    )
    if report is None:
        raise ConfigError(f"step {step} has no rows")
    return report
