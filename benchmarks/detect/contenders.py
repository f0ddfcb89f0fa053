"""What a detector must offer to enter: alarms per logged point, from the past alone.

A fork is another future of a run: the same records up to a row, then a tail with a fault in it. A
contender that walks the run once and copies itself at each fork says exactly what it would say of
the whole spliced series, for the price of the tail.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from benchmarks.scoring import QUIET_RECORDS
from trimtab.core.block import Block, BoolArray, FloatArray, IntArray
from trimtab.core.signals import GRAD_NORM, LOSS


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Another future of a run, with one fault that a contender should find."""

    kind: str
    row: int
    """The row of the run that the first row of the tail takes the place of."""
    tail: Block
    start: int
    """The row of the tail at which the fault to be found begins."""
    last: int
    """The last row of the tail in which an alarm finds it."""
    peak: int | None
    """The row of the tail with the largest loss, if the fault has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """The alarms of one contender over a run and its forks, one flag per row."""

    run: BoolArray
    forks: list[BoolArray]
    warned: Sequence[BoolArray] = ()
    """Warnings about the loss and alarms over the forks; empty for a contender without warnings."""


class Contender(Protocol):
    """A detector on the scoreboard."""

    @property
    def name(self) -> str:
        """What the table calls it."""

    @property
    def source(self) -> str:
        """By whose code it ran: a package with its version, or a rule written from its facts."""

    def watch(self, run: Block, forks: Sequence[Fork] = ()) -> Alarms:
        """Say at which rows it raises an alarm."""


W = TypeVar("W")
Seen = TypeVar("Seen")

Rule = Callable[[FloatArray, FloatArray | None], BoolArray]
"""Losses and norms (none if the run has no norms) in, one flag per value out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRule:
    """A rule over whole arrays; for a fork it is run again over as much past as it looks at."""

    name: str
    rule: Rule
    memory: int | None
    """Values before a value that can matter to it; none if all of them can."""
    source: str = "rule"

    def watch(self, run: Block, forks: Sequence[Fork] = ()) -> Alarms:
        return Alarms(run=self._flags(run), forks=[self._fork(run, fork) for fork in forks])

    def _flags(self, block: Block) -> BoolArray:
        loss, norm, rows = recorded(block)
        flags = np.zeros(len(block), dtype=np.bool_)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            flags[rows] = self.rule(loss, norm)
        return flags

    def _fork(self, run: Block, fork: Fork) -> BoolArray:
        begin = 0 if self.memory is None else max(fork.row - self.memory, 0)
        flags = self._flags(Block.concat([run[begin : fork.row], fork.tail]))
        return flags[fork.row - begin :]


class Watcher(Protocol):
    """A detector that takes one record after the other; it can be copied at any time."""

    def see(self, loss: float, norm: float | None) -> bool:
        """Take the next record; say whether it raises an alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise:
    """A contender that walks through the records one by one."""

    name: str
    start: Callable[[], Watcher]
    source: str = "rule"

    def watch(self, run: Block, forks: Sequence[Fork] = ()) -> Alarms:
        pieces, tails = walk(self.start(), _flags_of, run, forks)
        return Alarms(run=np.concatenate(pieces), forks=tails)


def walk(
    watcher: W, see: Callable[[W, Block, Fork | None], Seen], run: Block, forks: Sequence[Fork]
) -> tuple[list[Seen], list[Seen]]:
    """Show a run to a watcher, and each fork to a copy of it; return what it saw of each."""
    pieces: list[Seen] = []
    tails: dict[int, Seen] = {}
    begin = 0
    for at in sorted(range(len(forks)), key=lambda at: forks[at].row):
        fork = forks[at]
        if fork.row > begin:
            pieces.append(see(watcher, run[begin : fork.row], None))
            begin = fork.row
        tails[at] = see(copy.deepcopy(watcher), fork.tail, fork)
    pieces.append(see(watcher, run[begin:], None))
    return pieces, [tails[at] for at in range(len(forks))]


def _flags_of(watcher: Watcher, block: Block, fork: Fork | None) -> BoolArray:
    """The flags of a block; of a fork only up to the alarm that finds its fault."""
    losses, norms, rows = recorded(block)
    flags = np.zeros(len(block), dtype=np.bool_)
    norm_values = [None] * len(rows) if norms is None else norms.tolist()
    for row, loss, norm in zip(rows.tolist(), losses.tolist(), norm_values, strict=True):
        flags[row] = watcher.see(loss, norm)
        is_new = flags[row] and not flags[max(row - QUIET_RECORDS, 0) : row].any()
        # Within the first rows it may not be new: the alarms before the fork are not known here.
        if fork and is_new and row >= max(fork.start, QUIET_RECORDS):
            break  # found: the rest of a long tail would only cost time
    return flags


def recorded(block: Block) -> tuple[FloatArray, FloatArray | None, IntArray]:
    """Losses, norms (none if there are none) and rows of the records that have a loss."""
    loss, norm = block.column(LOSS), block.column(GRAD_NORM)
    rows = np.flatnonzero(loss.present)
    return loss.values[rows], norm.values[rows] if norm.recorded else None, rows
