"""IncidentContext: one incident with the records around it, for the checks to look at."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block, Column, FloatArray
from trimtab.core.incidents import Incident
from trimtab.core.run import RunFacts
from trimtab.core.signals import LOSS, Quality
from trimtab.detect.textbook.thresholds import TEXTBOOK_THRESHOLDS, TextbookThresholds

RECORDS_BEFORE = 4096
RECORDS_AFTER = 1024
"""How far around an incident the checks look: the textbook's windows are 200 records and 500
after the peak; with telemetry every 10 steps that is 2,000 and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentContext:
    """One incident with the records around it."""

    block: Block
    """The records around the incident, from well before its onset to well after its last one."""
    incident: Incident
    facts: RunFacts
    config: TextbookThresholds = TEXTBOOK_THRESHOLDS
    went_well_again: bool | None = None
    """Whether its steps went well when they were done again without a change; None if that is not
    known."""

    @classmethod
    def of(
        cls,
        incident: Incident,
        run: Block,
        facts: RunFacts,
        *,
        went_well_again: bool | None = None,
    ) -> "IncidentContext":
        """The context of an incident in a run, which may have lost some of its records."""
        start = max(run.row_of(incident.onset.tick) - RECORDS_BEFORE, 0)
        stop = run.row_of(incident.last.tick) + RECORDS_AFTER
        return cls(
            block=run[start:stop],
            incident=incident,
            facts=facts,
            went_well_again=went_well_again,
        )

    @property
    def onset_row(self) -> int:
        """The row of the onset; if that record was lost, the row after it."""
        return self.block.row_of(self.incident.onset.tick)

    @property
    def has_onset(self) -> bool:
        """Whether the record of the onset is there."""
        row = self.onset_row
        return row < len(self.block) and int(self.block.tick[row]) == self.incident.onset.tick

    @property
    def last_row(self) -> int:
        """The row of the last record looked at while the incident was open."""
        return self.block.row_of(self.incident.last.tick)

    def recorded(self, signal: str) -> bool:
        """Whether the signal has any value in the records that the checks look at."""
        around = slice(max(self.onset_row - self.config.rise_records, 0), self.last_row + 1)
        return self.block.column(signal)[around].recorded

    def during(self, signal: str) -> Column:
        """The signal from the onset to the last record of the incident."""
        return self.block.column(signal)[self.onset_row : self.last_row + 1]

    def before(self, signal: str, records: int, *, within_steps: int | None = None) -> FloatArray:
        """The last `records` finite values before the onset, not older than `within_steps`."""
        column = self.block.column(signal)[: self.onset_row]
        chosen = column.finite
        if within_steps is not None:
            chosen &= self.block.step[: self.onset_row] >= self.incident.onset.step - within_steps
        return column.values[chosen][-records:]

    def at_onset(self, signal: str) -> float | None:
        """The value at the onset; None if it was not recorded there."""
        column = self.block.column(signal)
        row = self.onset_row
        return float(column.values[row]) if self.has_onset and column.present[row] else None

    def worst(self, signal: str) -> float | None:
        """The largest value from the onset on; a non-finite one is larger than any finite one."""
        column = self.during(signal)
        bad = column.values[column.nonfinite]
        return float(bad[0]) if len(bad) else self.largest_finite(signal)

    def largest_finite(self, signal: str) -> float | None:
        """The largest finite value from the onset on."""
        column = self.during(signal)
        values = column.values[column.finite]
        return float(values.max()) if len(values) else None

    def loss_after(self, records: int) -> float | None:
        """The loss this many records after the peak; None if the log ends before."""
        column = self.block.column(LOSS)
        start = self.block.row_of(self.incident.peak.tick)
        rows = np.flatnonzero(column.present[start:])
        return float(column.values[start + rows[records]]) if len(rows) > records else None

    def caveat(self, signal: str) -> str:
        """What qualifies a signal that is not raw; empty if it is."""
        quality = self.block.quality(signal)
        return "" if quality is Quality.RAW else f" (recorded as {quality.label})"
