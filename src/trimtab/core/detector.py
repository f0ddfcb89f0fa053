"""Detector: the base class of everything that finds symptoms in a run, trimtab's or a user's.

    class HighLoss(Detector):
        name = "high-loss"

        def update(self, row: Row) -> list[Finding]:
            loss = row.signals.get("loss", 0.0)
            if not loss > 20.0:
                return []
            return [
                Finding(
                    detector=self.name, symptom="loss over 20", severity=Severity.WARN,
                    signal="loss", step=row.step, tick=row.tick, value=loss,
                )
            ]

`update` is all that a detector needs. What it remembers it keeps in attributes; they are saved and
loaded without further code (state.py).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import ClassVar

from trimtab.core.block import Block
from trimtab.core.findings import Finding
from trimtab.core.signals import Quality
from trimtab.core.state import Stateful

_ROWS_AT_ONCE = 1024
"""Records of a long block that are turned into rows at a time: a bound on memory."""


@dataclass(slots=True)
class Row:
    """One record in plain Python: for a single record, numpy costs more than the arithmetic."""

    step: int
    tick: int
    attempt: int
    data_position: int
    signals: dict[str, float]
    """Only what was recorded, finite or not; a signal that is absent is missing."""
    qualities: Mapping[str, Quality]
    """Of the signals that are not raw."""


class KnownChange(Flag):
    """What is known to have happened between two records."""

    NOTHING = 0
    RESUMED = auto()
    """A new process continues where the last one stopped."""
    WENT_BACK = auto()
    """A new attempt: steps are made a second time."""
    CHANGED = auto()
    """A planned change, or a new batch size: the past is no measure any more."""
    PAUSED = auto()
    """An evaluation or a checkpoint: the clock ran, the training did not."""
    SKIPPED_DATA = auto()
    """A rollback that passes over some of the data: batches come earlier than they would have."""
    ODD_BATCH = auto()
    """The next record has a batch of a different size, such as the last one of an epoch: this one
    record is not comparable."""


class Detector(Stateful):
    """Finds symptoms in the records of a run.

    How a run is cut into blocks never changes what is found.
    """

    __slots__ = ()

    name: ClassVar[str]
    """Unique among the detectors of a run."""
    listens_to: ClassVar[KnownChange] = KnownChange.NOTHING
    """The changes that `on_event` is called for."""
    not_rewound: ClassVar[tuple[str, ...]] = ()
    """Stateful attributes that keep what they know when the run is rolled back."""
    skips_odd_batches: ClassVar[bool] = False
    """Whether records that are not comparable (`KnownChange.ODD_BATCH`) are left out."""

    def on_event(self, change: KnownChange) -> None:
        """React to what happened before the next record."""

    def update(self, row: Row) -> list[Finding]:
        """Judge the next record."""
        raise NotImplementedError

    def update_many(self, block: Block) -> list[Finding]:
        """Judge the next records, with the findings that `update` would return one by one.

        Override it only for speed.
        """
        return [finding for row in rows_of(block) for finding in self.update(row)]


def rows_of(block: Block) -> Iterator[Row]:
    """The records of a block, one by one."""
    for piece in (block,) if len(block) <= _ROWS_AT_ONCE else block.cut(_ROWS_AT_ONCE):
        yield from _rows(piece)


def _rows(block: Block) -> list[Row]:
    axes = zip(
        block.step.tolist(),
        block.tick.tolist(),
        block.attempt.tolist(),
        block.data_position.tolist(),
        strict=True,
    )
    qualities = block.qualities
    rows = [Row(step, tick, attempt, at, {}, qualities) for step, tick, attempt, at in axes]
    if len(rows) == 1:  # a live step: item() saves two lists per signal
        signals = rows[0].signals
        for name, column in block.columns.items():
            if column.present.item():
                signals[name] = column.values.item()
        return rows
    for name, column in block.columns.items():
        for row, value, present in zip(
            rows, column.values.tolist(), column.present.tolist(), strict=True
        ):
            if present:
                row.signals[name] = value
    return rows
