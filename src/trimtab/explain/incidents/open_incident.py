"""OpenIncident: what is known so far about one incident."""

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trimtab.core.findings import Finding, Symptom
from trimtab.core.incident_facts import Facts
from trimtab.core.incidents import (
    Incident,
    IncidentChange,
    IncidentClass,
    Moment,
    Transition,
    finding_from_state,
)
from trimtab.explain.verdict.facts import Past, measure
from trimtab.explain.verdict.rows import Row
from trimtab.explain.verdict.table import DEAD_RECORDS, OPEN, Classified

FIRST_ROWS, NEWEST_ROWS = 512, 2048
"""Records of an incident that are kept: those after the onset and the newest. Chosen: a spike that
comes back by itself takes up to 500, and the newest show how the loss goes on."""

FIRST_LOOK, LOOK_FACTOR, LOOK_RECORDS = 4, 1.19, 128
"""Records after the onset at which an incident is looked at first; then each time that their number
has grown by this factor, or by so many. Looks follow from the onset alone, so a live run and its
log see the same. Chosen: four looks while the age doubles."""

MAX_EVALUATIONS = 16
"""Held-out losses since an onset that are kept."""

SINCE_PEAK = 65
"""Finite losses from the peak on, by which a restart is recognised."""


FAR_PEAK = 12.0
"""Deviations of one record beyond which a loss in an incident has followed. Source: the limit of
`loss-spike` for a single record of a thinned log; where every step is logged none alarms alone."""

OVERFLOWS = 8
"""Records without a loss after which a collapsed loss scale means that nothing is trained. Chosen:
a scaler finds its range again after a few halvings."""

WATCHED_RECORDS = 32
"""Records after an undo within which it is watched. Source: the run compares the first 20 losses
after it (`live.recover.undo_report`), and its records come some steps late."""

NEAR_PEAK, NEAR_RECORDS = 6.0, 4
"""The same in the first records of an incident, which another signal has alarmed of. Source: the
guides' 6 sigma; `loss_burst` looks at as many records."""


@dataclass(slots=True, kw_only=True)
class OpenIncident:
    """The working state of an incident; `snapshot` is its public form."""

    number: int
    past: Past
    onset: Moment
    peak: Moment
    last: Moment
    facts: Facts
    last_alarm: Moment
    """The newest record with an alarm."""
    attempt: int = 0
    end: Moment | None = None
    found: Classified = OPEN
    """The class that is said."""
    seen: IncidentClass = IncidentClass.OPEN
    """The class that the last look has seen; it is said if the next one sees it too."""
    findings: list[Finding] = field(default_factory=list)
    num_findings: int = 0
    is_loud: bool = False
    """Whether an alarm was about the loss itself."""
    is_kept_out: bool = True
    """Whether every alarm was about a step that was kept out of the weights."""
    calm: int = 0
    """Records since the newest alarm, or since the last of a row of kept-out steps from it on."""
    nonfinite_in_row: int = 0
    """Losses in a row up to the newest that were not finite and not kept out."""
    has_overflowed: bool = False
    """Whether no loss has come since the loss scale collapsed."""
    missing: int = 0
    """Records without a loss since the newest one that had one."""
    num_rows: int = 0
    """Records since the onset."""
    rows_before: int = 0
    """Of these, the records before the alarm that opened it, or reopened it last."""
    next_look: int = FIRST_LOOK
    """The number of records at which it is looked at next."""
    back_since: int | None = None
    """The number of records at the first look from which on the loss was ordinary."""
    settled_since: int | None = None
    """The number of records at the first look from which on the loss was on its new level."""
    num_reopened: int = 0
    has_finite_state: bool = True
    """Whether the norms of weights and optimizer were finite when they were last recorded."""
    state_step: int = 0
    """The step at which they were."""
    started_again: bool = False
    first_rows: list[Row] = field(default_factory=list)
    newest_rows: deque[Row] = field(default_factory=lambda: deque(maxlen=NEWEST_ROWS))
    evaluations: list[float] = field(default_factory=list)
    since_peak: list[float] = field(default_factory=list)

    @property
    def incident_class(self) -> IncidentClass:
        return self.found.incident_class

    @property
    def rows(self) -> list[Row]:
        """The records since the onset; of many, the first and the newest."""
        return [*self.first_rows, *self.newest_rows]

    def join(self, alarms: Sequence[Finding], *, is_loud: bool, is_kept_out: bool) -> bool:
        """Add further alarms; return whether one of them has a symptom not seen here before."""
        self.num_findings += len(alarms)
        self.calm = 0
        known = {finding.symptom for finding in self.findings}
        new = [alarm for alarm in alarms if alarm.symptom not in known]
        self.findings += new
        self.is_loud = self.is_loud or is_loud
        self.is_kept_out = self.is_kept_out and is_kept_out
        if not is_kept_out:
            self.back_since = None
        return bool(new)

    def observe(self, row: Row) -> None:
        """Add a record."""
        self.num_rows += 1
        self.missing, self.has_overflowed = 0, False
        if len(self.first_rows) < FIRST_ROWS:
            self.first_rows.append(row)
        else:
            self.newest_rows.append(row)
        self.last = row.moment
        if _badness(self.last) > _badness(self.peak):
            self.peak = self.last
            self.since_peak = []
        if row.is_finite and row.loss is not None and len(self.since_peak) < SINCE_PEAK:
            self.since_peak.append(row.loss)
        if row.is_kept_out and self.calm <= 1:
            self.calm = 0  # a detector alarms at the first of a row of them alone
        if row.is_finite:
            self.nonfinite_in_row = 0
        elif row.loss is not None and not row.is_kept_out:
            self.nonfinite_in_row += 1
            self.is_kept_out = False

    def is_due(self) -> bool:
        """Return whether this record is one at which the incident is looked at."""
        if self.num_rows < self.next_look:
            return self.nonfinite_in_row == DEAD_RECORDS
        while self.next_look <= self.num_rows:
            grown = int(self.next_look * LOOK_FACTOR)
            self.next_look = max(self.next_look + 1, min(grown, self.next_look + LOOK_RECORDS))
        return True

    def miss(self, moment: Moment) -> None:
        """Count a record without a loss; where every step overflows there is none any more."""
        self.missing += 1
        if not self.has_overflowed:
            symptoms = {finding.symptom for finding in self.findings}
            # Losses may be logged less often than the scale.
            is_late = moment.step - self.last.step >= OVERFLOWS * self.past.stride
            if self.missing < OVERFLOWS or not is_late or Symptom.SCALE_COLLAPSE not in symptoms:
                return
            self.has_overflowed = True
            self.num_rows += self.missing - 1
        self.num_rows += 1
        self.last = moment

    def measure(self, undone: int, *, has_undo_failed: bool, undone_at: int | None = None) -> None:
        """Measure the facts at the last record; `undone_at` is the step of the newest undo."""
        symptoms = {finding.symptom for finding in self.findings}
        measured = measure(self.past, self.rows, self.evaluations)
        has_finite_state, is_watched = self.has_finite_state, False
        if undone and undone_at is not None and not has_undo_failed:
            # What was not finite before the undo is not in the weights any more.
            since = sum(row.step > undone_at for row in self.rows)
            measured = dataclasses.replace(
                measured,
                kept_out_at_end=min(measured.kept_out_at_end, since),
                nonfinite_at_end=min(measured.nonfinite_at_end, since),
            )
            has_finite_state = has_finite_state or self.state_step <= undone_at
            is_bad = measured.nonfinite_at_end >= DEAD_RECORDS or not has_finite_state
            is_watched = since < WATCHED_RECORDS and not is_bad
        self.facts = dataclasses.replace(
            measured,
            has_overflowed=self.has_overflowed,
            records=self.num_rows,
            is_loud=self.is_loud or self._has_far_peak(),
            is_kept_out=self.is_kept_out,
            undone_updates=undone,
            has_undo_failed=has_undo_failed,
            is_undo_watched=is_watched,
            has_finite_state=has_finite_state,
            has_collapsed=Symptom.REWARD_HACKED in symptoms,
            never_learnt=Symptom.NO_LEARNING in symptoms,
            started_again=self.started_again,
        )

    def _has_far_peak(self) -> bool:
        """Return whether the loss was so far up that it did follow, alarm or not."""
        reference, peak = self.past.reference, self.peak.loss
        if peak is None or not reference.has_level or not self.past.is_measure:
            return False
        above = float(reference.to_scale(np.array(peak))) - reference.level
        is_near = any(row.tick == self.peak.tick for row in self.first_rows[:NEAR_RECORDS])
        return above > (NEAR_PEAK if is_near else FAR_PEAK) * reference.noise

    def change(self, transition: Transition, tick: int) -> IncidentChange:
        return IncidentChange(transition=transition, tick=tick, incident=self.snapshot())

    def snapshot(self) -> Incident:
        return Incident(
            number=self.number,
            onset=self.onset,
            peak=self.peak,
            end=self.end,
            last=self.last,
            records=self._records(),
            incident_class=self.incident_class,
            certainty=self.found.certainty,
            facts=self.facts,
            findings=tuple(self.findings),
            num_findings=self.num_findings,
        )

    def _records(self) -> int:
        """Return the records from the onset to the end, or to the last one."""
        if self.end is None:
            return self.num_rows
        after = sum(row.tick > self.end.tick for row in self.rows)
        return self.num_rows - after

    def state_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        state = dataclasses.asdict(self)
        return {**state, "newest_rows": list(self.newest_rows)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "OpenIncident":
        """Restore what `state_dict` returned."""
        moments = {name: _moment(state[name]) for name in ("onset", "peak", "last", "last_alarm")}
        found = Classified(
            incident_class=IncidentClass(state["found"]["incident_class"]),
            certainty=state["found"]["certainty"],
        )
        parts: dict[str, Any] = {
            **state,
            **moments,
            "past": Past.from_state(state["past"]),
            "facts": Facts.from_state(state["facts"]),
            "end": _moment(state["end"]) if state["end"] else None,
            "found": found,
            "seen": IncidentClass(state["seen"]),
            "findings": [finding_from_state(part) for part in state["findings"]],
            "first_rows": [Row(*row) for row in state["first_rows"]],
            "newest_rows": deque((Row(*row) for row in state["newest_rows"]), NEWEST_ROWS),
        }
        return cls(**parts)


def _moment(state: Mapping[str, Any]) -> Moment:
    return Moment(**state)


def _badness(moment: Moment) -> float:
    """Return a number that orders losses from good to bad: non-finite is worse than any finite."""
    if moment.loss is None:
        return -math.inf
    return moment.loss if math.isfinite(moment.loss) else math.inf
