"""Detector: the base class of everything that finds symptoms in a run, trimtab's or a user's.

    class HighLoss(Detector):
        name = "high-loss"

        def update(self, record: Record) -> list[Finding]:
            loss = record.signals.get("loss", 0.0)
            if not loss > 20.0:
                return []
            return [
                Finding(
                    detector=self.name, symptom="loss over 20", severity=Severity.WARN,
                    signal="loss", step=record.step, tick=record.tick, value=loss,
                )
            ]

`update` is all that a detector needs. What it remembers it keeps in attributes; they are saved and
loaded without further code (state.py).
"""

from enum import Flag, auto
from typing import ClassVar

from trimtab.core.block import Block, Record
from trimtab.core.findings import Finding
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

    def update(self, record: Record) -> list[Finding]:
        """Judge the next record."""
        raise NotImplementedError

    def update_many(self, block: Block) -> list[Finding]:
        """Judge the next records, with the findings that `update` would return one by one.

        Override it only for speed.
        """
        return [finding for record in block.records() for finding in self.update(record)]
