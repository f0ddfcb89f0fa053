"""Detector: the base class of everything that finds symptoms in a run, trimtab's or a user's.

    class HighLoss(Detector):
        name = "high-loss"

        def update(self, record: Record) -> list[Finding]:
            loss = record.signals.get("loss", 0.0)
            if not loss > 20.0:
                return []
            return [self.finding(record, "loss over 20", Severity.WARN, signal="loss")]

`update` is all that a detector needs. What it remembers it keeps in attributes; they are saved and
loaded without further code (state.py).
"""

from enum import Flag, auto
from typing import Any, ClassVar

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.findings import Finding, Severity
from trimtab.core.state import Stateful


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
    HARMED = auto()
    """Weights or optimizer were proven to be harmed."""
    RESTORED = auto()
    """Weights and optimizer are those of an earlier step: an undo."""
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
    needs: ClassVar[str | None] = None
    """A signal without which `update` finds nothing and remembers nothing; of a long log only the
    records that have it are judged."""
    skips_odd_batches: ClassVar[bool] = False
    """Whether records that are not comparable (`KnownChange.ODD_BATCH`) are left out."""

    def on_event(self, change: KnownChange) -> None:
        """React to what happened before the next record."""

    def update(self, record: Record) -> list[Finding]:
        """Judge the next record."""
        raise NotImplementedError

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows of the next records that `update` must be called for, in order.

        The others must not matter: with or without them, `update` finds the same here and later.
        Those with the signal that is needed matter by default. Override it only for speed, where a
        glance at whole columns tells: a log of a million steps is mostly rows in which nothing
        happens.
        """
        if self.needs is None:
            return np.arange(len(block))
        return np.flatnonzero(block.column(self.needs).present)

    def update_many(self, block: Block) -> list[Finding]:
        """Judge the next records, with the findings that `update` would return one by one.

        Override it only for speed, where every row matters and `relevant_rows` cannot help; then
        `update` is not needed.
        """
        records = block.records(self.relevant_rows(block))
        return [finding for record in records for finding in self.update(record)]

    def finding(
        self,
        record: Record,
        symptom: str,
        severity: Severity,
        signal: str,
        value: float | None = None,
        **details: Any,
    ) -> Finding:
        """Return a finding of this detector at a record.

        Args:
            record: Where it shows.
            symptom: A `Symptom`, or any string.
            severity: How serious it is.
            signal: The signal that shows it.
            value: What was found; the recorded value of the signal if None.
            details: Other fields of `Finding`, such as `expected`, `limit` or `facts`.
        """
        return Finding(
            detector=self.name,
            symptom=symptom,
            severity=severity,
            signal=signal,
            step=record.step,
            tick=record.tick,
            value=record.signals[signal] if value is None else value,
            **details,
        )
