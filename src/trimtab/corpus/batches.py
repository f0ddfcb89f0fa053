"""Build batches that cannot spike by what is in them.

`spread_rare` is a batch sampler whose batches have no rare token twice. An epoch is planned as a
whole: the order of the sampler, spread (`spread.py`), cut into steps, each cut into micro-batches
and ranks. So every rank has the same plan, and a place in it is two numbers. `mask_repeats` leaves
phrases that are repeated many times out of the loss, by the thresholds of the scan (`options.py`).
"""

import logging
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trimtab.core.errors import ConfigError
from trimtab.corpus.counting import find_phrase_runs, repeated_tokens
from trimtab.corpus.options import MAX_PERIOD, REPEATS
from trimtab.corpus.spread import Ids, RareRows, SpreadOrder, spread

IGNORE_INDEX = -100
"""Labels that the loss leaves out. Source: the default of torch's cross-entropy."""


def mask_repeats(
    tokens: Any,
    labels: Any,
    *,
    whole_rows: bool = False,
    repeats: int = REPEATS,
    max_period: int = MAX_PERIOD,
    ignore_index: int = IGNORE_INDEX,
) -> Any:
    """Copy the labels, with repeated phrases ignored; the tokens stay as they are.

    Args:
        tokens: (rows, length) or (length,): arrays, tensors in host memory, or lists of rows.
        labels: One label per token, of the same type. Labels may equal the tokens, as in HF
            trainers, or be the tokens one place later.
        whole_rows: Ignore each row that has a repeated phrase, as OLMo does.
        repeats: A phrase is masked from this many occurrences in a row on.
        max_period: The longest phrase that is looked for.
        ignore_index: The label that the loss leaves out.
    """
    if isinstance(tokens, list):
        rows = [np.asarray(row) for row in tokens]
        settings = (whole_rows, repeats, max_period, ignore_index)
        return [
            _mask_row(row, np.array(label), *settings).tolist()
            for row, label in zip(rows, labels, strict=True)
        ]
    masked = labels.clone() if hasattr(labels, "clone") else labels.copy()
    # A tensor in host memory and its array share their memory.
    target = masked.numpy() if hasattr(masked, "numpy") else masked
    source = tokens.numpy() if hasattr(tokens, "numpy") else tokens
    length = source.shape[-1]
    for row, label in zip(source.reshape(-1, length), target.reshape(-1, length), strict=True):
        label[:] = _mask_row(row, label, whole_rows, repeats, max_period, ignore_index)
    return masked


def _mask_row(
    row: NDArray[Any],
    labels: NDArray[Any],
    whole_rows: bool,
    repeats: int,
    max_period: int,
    ignore_index: int,
) -> NDArray[Any]:
    runs = find_phrase_runs(row, repeats=repeats, max_period=max_period)
    if runs:
        mask = slice(None) if whole_rows else repeated_tokens(row, runs)
        labels[mask] = ignore_index
    return labels


log = logging.getLogger("trimtab")


class Shuffle:
    """A sampler: all rows in a random order that depends on the seed and the epoch alone."""

    def __init__(self, num_rows: int, *, seed: int = 0) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order the next `iter()` has."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng((self._seed, self._epoch)).permutation(self._num_rows)
        return iter(order.tolist())

    def __len__(self) -> int:
        return self._num_rows


def spread_rare(
    sampler: Iterable[int],
    rare: RareRows,
    *,
    batch_size: int,
    accumulate: int = 1,
    rank: int = 0,
    world_size: int = 1,
    drop_last: bool = True,
    seed: int = 0,
) -> "SpreadBatches":
    """Wrap a sampler so that no step holds more than one occurrence of a rare token.

    Args:
        sampler: Yields the rows of an epoch, for all ranks together. If it has `set_epoch`, that is
            called; else each `iter()` is the next epoch.
        rare: The rows that hold rare tokens.
        batch_size: Rows of a micro-batch on one rank.
        accumulate: Micro-batches per optimizer step.
        rank: This rank.
        world_size: Number of ranks with different data.
        drop_last: Leave out the rows after the last whole step. False is for one rank without
            accumulation: with several, ranks would end at different times.
        seed: Decides where rows move to; the same on all ranks.

    Returns:
        A batch sampler, for `DataLoader(batch_sampler=...)`.
    """
    if min(batch_size, accumulate, world_size) < 1 or not 0 <= rank < world_size:
        raise ConfigError(
            f"batch_size {batch_size}, accumulate {accumulate} and world_size {world_size} must be "
            f"at least 1, and rank {rank} below world_size"
        )
    if not drop_last and accumulate * world_size > 1:
        raise ConfigError("drop_last=False is for one rank without accumulation")
    if getattr(sampler, "num_replicas", 1) > 1:
        raise ConfigError(
            "the sampler yields the rows of one rank; give one that yields the rows of all ranks, "
            "such as trimtab.corpus.Shuffle, and rank and world_size to spread_rare"
        )
    return SpreadBatches(
        sampler,
        rare,
        micro_rows=batch_size,
        accumulate=accumulate,
        rank=rank,
        world_size=world_size,
        drop_last=drop_last,
        seed=seed,
    )


class SpreadBatches:
    """Yields the micro-batches of this rank, epoch after epoch; made by `spread_rare`.

    `state_dict()` is the place after the last batch that was yielded. A loader with workers fetches
    batches ahead: use torchdata's `StatefulDataLoader`, which keeps the state of what it returned.
    """

    def __init__(
        self,
        sampler: Iterable[int],
        rare: RareRows,
        *,
        micro_rows: int,
        accumulate: int,
        rank: int,
        world_size: int,
        drop_last: bool,
        seed: int,
    ) -> None:
        self._sampler = sampler
        self._rare = rare
        self._micro_rows = micro_rows
        self._accumulate = accumulate
        self._rank = rank
        self._world_size = world_size
        self._drop_last = drop_last
        self._seed = seed
        self._drawn = 0
        self._epoch = 0
        self._next = 0
        self._is_begun = False
        self._expected: int | None = None
        self._plan: SpreadOrder | None = None

    @property
    def step_rows(self) -> int:
        """Rows of a step, over all ranks and micro-batches."""
        return self._micro_rows * self._accumulate * self._world_size

    @property
    def plan(self) -> SpreadOrder:
        """The order of the current epoch, and how many repeats are left in it."""
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch at the next `iter()`; without calls, epochs follow each other."""
        if epoch != self._epoch:
            self._epoch, self._next, self._plan = epoch, 0, None
            self._is_begun = False

    def __len__(self) -> int:
        rows = len(self.plan.order)
        if self._drop_last:
            return rows // self.step_rows * self._accumulate
        return -(-rows // self._micro_rows)

    def __iter__(self) -> "_Batches":
        # As with any sampler, each `iter()` is an epoch; only after a resume it is the rest of one.
        if self._is_begun or self._next >= len(self):
            self.set_epoch(self._epoch + 1)
        self._is_begun = True
        return _Batches(self)

    def batch(self, index: int) -> list[int]:
        """Return the rows of a micro-batch of this rank."""
        step, micro = divmod(index, self._accumulate)
        first = step * self.step_rows
        first += (micro * self._world_size + self._rank) * self._micro_rows
        rows: list[int] = self.plan.order[first : first + self._micro_rows].tolist()
        return rows

    def advance(self) -> list[int] | None:
        """Return the next batch; None at the end of the epoch."""
        if self._next >= len(self):
            return None
        self._next += 1
        return self.batch(self._next - 1)

    def state_dict(self) -> dict[str, Any]:
        """Epoch, place in it, and a checksum of the order; the same for any number of ranks."""
        return {
            "epoch": self._epoch,
            "rows": self._next // self._accumulate * self.step_rows,
            "micro_batch": self._next % self._accumulate,
            "order": zlib.crc32(self.plan.order.tobytes()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved place, with the same number of rows per step."""
        # Rows, not batches: a resume may have another number of ranks or micro-batches.
        if state["rows"] % self.step_rows:
            raise ConfigError(
                f"the state is after {state['rows']} rows, which is no multiple of the "
                f"{self.step_rows} rows of a step; resume with the same rows per step"
            )
        self._epoch, self._plan, self._is_begun = int(state["epoch"]), None, False
        self._next = state["rows"] // self.step_rows * self._accumulate + int(state["micro_batch"])
        self._expected = int(state["order"])

    def _make_plan(self) -> SpreadOrder:
        order = self._draw()
        if order.max(initial=-1) >= self._rare.num_rows or order.min(initial=0) < 0:
            raise ConfigError(
                f"the sampler yields row {order.max()}, and the rare rows are those of a dataset "
                f"with {self._rare.num_rows} rows"
            )
        if self._drop_last:
            order = order[: len(order) // self.step_rows * self.step_rows]
        plan = spread(order, self._rare, self.step_rows, (self._seed, self._epoch))
        if self._expected is not None and zlib.crc32(plan.order.tobytes()) != self._expected:
            raise ConfigError(
                "the sampler gives a different order than before the resume: give it a seeded "
                "generator, or use trimtab.corpus.Shuffle"
            )
        self._expected = None
        log.info(
            "trimtab: epoch %d: %d rows moved; rare tokens twice in a step: %d (before: %d, within "
            "one row: %d)",
            *(self._epoch, plan.moved, plan.repeated, plan.repeated_before),
            self._rare.unavoidable,
        )
        return plan

    def _draw(self) -> Ids:
        """Draw the order of the current epoch from the sampler."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self._epoch)
            return np.fromiter(self._sampler, dtype=np.int64)
        if self._drawn > self._epoch:
            raise ConfigError("this sampler cannot go back to an earlier epoch; make a new one")
        # A generator gives one order after the other: draw those of the epochs before as well.
        while True:
            order = np.fromiter(self._sampler, dtype=np.int64)
            self._drawn += 1
            if self._drawn > self._epoch:
                return order


class _Batches:
    """Iterates over the rest of an epoch; torchdata saves and loads its state."""

    def __init__(self, owner: SpreadBatches) -> None:
        self._owner = owner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[int]:
        batch = self._owner.advance()
        if batch is None:
            raise StopIteration
        return batch

    def state_dict(self) -> dict[str, Any]:
        return self._owner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owner.load_state_dict(state)
