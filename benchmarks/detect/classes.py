"""Classes of incidents: what trimtab said became of each, against what truly did.

In the lab the truth is the run beside its clean twin (`benchmarks.true_class`); on
public runs it is the label. Scored is the first incident that opened from the onset on, or in the
labelled event. Where there is none, nothing is scored here: that counts in recall.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.kit.public_runs import RealRun

from benchmarks.detect.suite import LabRun
from benchmarks.scoring import counted, zone
from benchmarks.true_class import true_class
from benchmarks.twins import Pair
from trimtab.core.block import Block
from trimtab.core.findings import Severity
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Transition
from trimtab.judge import Judge

LOOKS = (8, 32)
"""Records after the alarm at which the class of that moment is asked for."""

OUTCOMES = {
    "recovered": IncidentClass.RECOVERED,
    "lingering": IncidentClass.LINGERING,
    "divergent": IncidentClass.DIVERGENT,
}
"""The words of the labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classed:
    """One incident with its true class."""

    name: str
    split: str
    truth: IncidentClass
    final: IncidentClass
    said: dict[int, tuple[IncidentClass, float]]
    """Class and certainty that were said so many records after the alarm."""
    onset_error: int
    """Steps from the true onset to the one that trimtab dated."""
    is_from_start: bool = False
    """Whether the fault was there from the first step on: then there is no before."""

    def is_right(self, look: int | None = None) -> bool:
        """Whether the class is right: the final one, or the one at a look."""
        said = self.final if look is None else self.said[look][0]
        return (IncidentClass.RECOVERED if said is IncidentClass.RECOVERING else said) is self.truth


@dataclass(frozen=True, slots=True)
class Judged:
    """All that the judge said of one run."""

    alarm_rows: list[int]
    changes: list[IncidentChange]
    incidents: tuple[Incident, ...]

    @classmethod
    def of(cls, block: Block) -> "Judged":
        """Let the judge, with the rules it has by default, see a whole run."""
        judge = Judge()
        seen = judge.update(block)
        alarms = [item for item in seen.findings if item.severity is Severity.ALARM]
        return cls(
            alarm_rows=sorted({block.row_of(item.tick) for item in alarms}),
            changes=[*seen.changes, *judge.finish().changes],
            incidents=judge.incidents,
        )

    def opening(self, first: int, last: int) -> IncidentChange | None:
        """The first incident that opened, or opened again, between two ticks."""
        opening = (Transition.OPENED, Transition.REOPENED)
        return next(
            (
                change
                for change in self.changes
                if change.transition in opening and first <= change.tick <= last
            ),
            None,
        )

    def classed(
        self, run: LabRun | RealRun, opening: IncidentChange, truth: IncidentClass, onset: int
    ) -> Classed:
        """What was said of an incident beside the truth."""
        number = opening.incident.number
        incident = next(item for item in self.incidents if item.number == number)
        changes = [item for item in self.changes if item.incident.number == number]
        return Classed(
            name=run.name,
            split=run.split,
            truth=truth,
            final=incident.incident_class,
            said={look: _said_at(opening.tick + look, changes) for look in LOOKS},
            onset_error=incident.onset.step - onset,
            is_from_start=isinstance(run, LabRun) and run.onset == 0,
        )


def lab_classed(run: LabRun, twin: LabRun, judged: Judged) -> Classed | None:
    """The incident of a fault run; None if it was not found or nothing ever left the twin."""
    onset = run.onset or 0
    opening = judged.opening(int(run.block.tick[onset]), int(run.block.tick[-1]))
    if opening is None:
        return None
    pair = Pair(run.block, twin.block, onset)
    truth = true_class(pair, alarm=run.block.row_of(opening.tick))
    if truth is None:
        return None
    return judged.classed(run, opening, truth, int(run.block.step[onset]))


def real_classed(runs: Sequence[RealRun]) -> list[Classed]:
    """The labelled incidents of public runs that were found."""
    found = []
    for run in runs:
        labels = [label for label in counted(run) if label.outcome in OUTCOMES]
        if not labels:
            continue
        judged = Judged.of(run.block)
        for label in labels:
            first, last = zone(run, label)
            opening = judged.opening(int(run.block.tick[first]), int(run.block.tick[last]))
            if opening is not None:
                truth = OUTCOMES[str(label.outcome)]
                found.append(judged.classed(run, opening, truth, label.start))
    return found


def confusion(items: Sequence[Classed]) -> dict[tuple[IncidentClass, IncidentClass], int]:
    """How often what was called what."""
    counts: dict[tuple[IncidentClass, IncidentClass], int] = {}
    for item in items:
        key = item.truth, item.final
        counts[key] = counts.get(key, 0) + 1
    return counts


def onset_errors(items: Sequence[Classed]) -> tuple[float, int]:
    """By how many steps onsets are dated wrongly: the median and the worst."""
    errors = np.abs([item.onset_error for item in items])
    return float(np.median(errors)), int(errors.max())


def _said_at(tick: int, changes: Sequence[IncidentChange]) -> tuple[IncidentClass, float]:
    """The class of an incident, and its certainty, as they stood at a record."""
    latest = [change.incident for change in changes if change.tick <= tick][-1]
    return latest.incident_class, latest.certainty
