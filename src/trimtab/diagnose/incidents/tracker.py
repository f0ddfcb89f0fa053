"""EpisodeTracker: the incident state machine of trimtab's own rules.

             alarm                  back on its trend, and 32 records bear it out
    quiet ----------> open --------------------------------> closed: hard batch, recoverable,
                       |  ^                                  or lingering if it took long
       8, 32 records:  |  |  alarm soon after                  |
       foreseen        |  +------------------------------------+
                       v  100 steps, or 2 records of a thinned log, and not back
                     classed: divergent if non-finite or running away, else lingering
                       v  four times that
                     re-baselined and closed: the level is the new normal (if it is finite)

The onset is dated back: to where the detectors saw the rise begin, and further to the warnings that
led up to it. An incident that opened without the loss is silent until the loss moves, and over when
it has not moved for 100 steps after the last alarm. Only records with a loss count; where no loss
comes any more, an incident is over after four times the time to recover.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import HARMLESS, Finding, Severity
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Moment, Transition
from trimtab.core.signals import LOSS
from trimtab.detect.tools.expectation import median
from trimtab.diagnose.incidents.open_incident import Episode

MEMORY = 256
"""Records that are remembered: the baseline before an onset that is dated back."""

LEVEL_RECORDS = 32
"""Records whose median is the new level, where one is taken as the new normal."""

LEAD_RECORDS = 8
"""A warning so soon before the onset, or before the next warning, belongs to it. Source: spikes
follow one to eight steps after their first signs."""


class EpisodeTracker:
    """Groups findings into incidents as the records pass by."""

    def __init__(self) -> None:
        self._recent: deque[Moment] = deque(maxlen=MEMORY)
        self._warnings: deque[int] = deque(maxlen=LEAD_RECORDS)
        """Ticks of the latest warnings."""
        self._open: Episode | None = None
        self._closed: Episode | None = None
        """The latest closed one, kept as long as it can be reopened."""
        self._since_closed = 0
        self._count = 0

    def feed(self, block: Block, findings: Sequence[Finding]) -> list[IncidentChange]:
        """Take the next records and what was found among them; return what changed."""
        alarms: dict[int, list[Finding]] = {}
        warnings: dict[int, int] = {}
        for finding in findings:
            if finding.severity is Severity.ALARM:
                alarms.setdefault(block.row_of(finding.tick), []).append(finding)
            # A slow step says nothing about the next loss.
            elif finding.severity is Severity.WARN and finding.symptom not in HARMLESS:
                warnings[block.row_of(finding.tick)] = finding.tick
        stops = sorted({*alarms, *warnings})
        changes: list[IncidentChange] = []
        row = 0
        while row < len(block):
            if self._open is None:
                # Nothing can happen before the next finding: take the quiet stretch in one go.
                following = bisect_left(stops, row)
                until = stops[following] if following < len(stops) else len(block)
                self._pass_quietly(block, row, until)
                row = until
            if row < len(block):
                if row in warnings:
                    self._warnings.append(warnings[row])
                changes += self._take(_moment(block, row), alarms.get(row, []))
                row += 1
        return changes

    def finish(self) -> list[IncidentChange]:
        """The log has ended: class what is open as far as the records allow."""
        episode = self._open
        last_word = episode.class_at_the_end() if episode else None
        if episode is None or last_word is episode.incident_class:
            return []
        episode.incident_class = last_word
        return [episode.change(Transition.CLASSED, episode.last.tick)]

    @property
    def open_incident(self) -> Incident | None:
        """The incident that is open now."""
        return self._open.snapshot() if self._open else None

    def state_dict(self) -> dict[str, Any]:
        """All that the tracker remembers."""
        return {
            "recent": [[moment.step, moment.tick, moment.loss] for moment in self._recent],
            "warnings": list(self._warnings),
            "open": self._open.state_dict() if self._open else None,
            "closed": self._closed.state_dict() if self._closed else None,
            "since_closed": self._since_closed,
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the tracker that `state_dict` described."""
        moments = (Moment(step=step, tick=tick, loss=loss) for step, tick, loss in state["recent"])
        self._recent = deque(moments, maxlen=MEMORY)
        self._warnings = deque(state["warnings"], maxlen=LEAD_RECORDS)
        self._open, self._closed = (
            Episode.from_state(state[part]) if state[part] else None for part in ("open", "closed")
        )
        self._since_closed = int(state["since_closed"])
        self._count = int(state["count"])

    def _pass_quietly(self, block: Block, first: int, last: int) -> None:
        if last - first == 1:  # a live step
            self._note(_moment(block, first))
            return
        rows = first + np.flatnonzero(block.column(LOSS).present[first:last])
        self._since_closed += len(rows)
        self._recent.extend(_moment(block, row) for row in rows[-MEMORY:].tolist())

    def _note(self, moment: Moment) -> None:
        """Remember a quiet record."""
        if moment.loss is not None:
            self._recent.append(moment)
            self._since_closed += 1

    def _take(self, moment: Moment, alarms: list[Finding]) -> list[IncidentChange]:
        """One record with a finding, or while an incident is open."""
        changes = []
        episode = self._open
        if episode is None and not alarms:
            self._note(moment)
            return []
        if episode is None:
            episode, transition = self._begin(moment, alarms)
            changes.append(episode.change(transition, moment.tick))
        elif episode.join(alarms):
            changes.append(episode.change(Transition.WORSENED, moment.tick))
        if moment.loss is None:
            episode.blind += 1
            if episode.blind > episode.most_records:
                changes += self._close(episode, episode.incident_class or IncidentClass.SILENT)
            return changes
        episode.see(moment)
        if episode.is_hard_batch():
            return changes + self._close(episode, IncidentClass.HARD_BATCH)
        if not alarms and episode.is_over():
            return changes + self._close(episode, episode.class_if_over())
        return changes + self._go_on(episode)

    def _go_on(self, episode: Episode) -> list[IncidentChange]:
        """An open incident whose loss is not back: look ahead, class it, or call it the normal."""
        changes = []
        tick = episode.last.tick
        if episode.foresee():
            changes.append(episode.change(Transition.FORESEEN, tick))
        if episode.is_due():
            incident_class = episode.class_if_not_back()
            if incident_class is not episode.incident_class:
                episode.incident_class = incident_class
                changes.append(episode.change(Transition.CLASSED, tick))
        if episode.is_settled() and episode.is_silent:
            return changes + self._close(episode, IncidentClass.SILENT)
        if episode.is_settled():
            episode.course.returned = None
            self._recent.clear()
            self._recent.extend(list(episode.course.tail)[-LEVEL_RECORDS:])
            episode.new_level = median([moment.loss or 0.0 for moment in self._recent])
            changes.append(episode.change(Transition.REBASELINED, tick))
            changes += self._close(episode, episode.class_if_not_back())
        return changes

    def _begin(self, moment: Moment, alarms: list[Finding]) -> tuple[Episode, Transition]:
        """Open a new incident, or the latest one again if it closed only just now."""
        closed = self._closed
        if closed and closed.may_reopen(self._since_closed):
            closed.reopen(alarms)
            self._open, self._closed = closed, None
            return closed, Transition.REOPENED
        self._count += 1
        before = list(self._recent)
        first = self._first_sign(moment, alarms, before)
        led_up = before[first:]
        episode = Episode.begin(
            self._count,
            led_up[0] if led_up else moment,
            before[:first],
            alarms,
        )
        for earlier in led_up:
            episode.see(earlier, is_waiting=False)
        self._recent.clear()
        self._recent.extend(before[:first])
        self._open, self._closed = episode, None
        return episode, Transition.OPENED

    def _first_sign(
        self, moment: Moment, alarms: Sequence[Finding], before: Sequence[Moment]
    ) -> int:
        """The place among the records before at which the incident began."""
        ticks = [earlier.tick for earlier in before]
        onsets = [alarm.onset_tick for alarm in alarms if alarm.onset_tick is not None]
        place = bisect_left(ticks, min(onsets, default=moment.tick))
        for warning in reversed(self._warnings):
            earlier = bisect_left(ticks, warning)
            if place - LEAD_RECORDS <= earlier < place:
                place = earlier
        return place

    def _close(self, episode: Episode, incident_class: IncidentClass) -> list[IncidentChange]:
        changes = []
        if episode.incident_class is not incident_class:
            episode.incident_class = incident_class
            changes.append(episode.change(Transition.CLASSED, episode.last.tick))
        returned = episode.course.returned
        episode.end = returned or episode.last
        if returned is not None:  # what came after it was usual again
            self._recent.extend(m for m in episode.course.tail if m.tick > returned.tick)
        self._open, self._closed, self._since_closed = None, episode, 0
        changes.append(episode.change(Transition.CLOSED, episode.last.tick))
        return changes


def _moment(block: Block, row: int) -> Moment:
    """The record of a row, as far as an incident cares for it."""
    column = block.columns.get(LOSS)
    loss = None
    if column is not None and column.present.item(row):
        loss = column.values.item(row)
    return Moment(step=block.step.item(row), tick=block.tick.item(row), loss=loss)
