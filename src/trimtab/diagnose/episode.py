"""Episode: what is known so far about one open incident, and how trimtab's own rules class it."""

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import (
    Incident,
    IncidentChange,
    IncidentClass,
    Moment,
    Outlook,
    Transition,
)
from trimtab.detect.expectation import median
from trimtab.diagnose.outlook import OUTLOOK_RECORDS, foresee

RECOVERY_STEPS, RECOVERY_RECORDS = 100, 2
"""A spike that is back within so many steps, or records of a thinned log, recovered; one that takes
longer lingers. Source: the rule by which the public runs were labelled."""

SETTLED = 4
"""After that many times the recovery time the level is taken as the new normal, and told: an
incident cannot alarm for ever."""

BACK_RECORDS = 5
"""Back is judged by the median of so many records (of one, where the log is thinned out). Source:
the borders of the labelled spikes were set by the median of 5."""

BACK_SCALES, BACK_SCALES_SINGLE = 1.0, 2.5
"""Scales above the level before the onset within which the loss is back."""

PACE_RECORDS = 17
"""Records before the onset that say how many steps lie between two."""

REOPEN_RECORDS = 16
"""An alarm so soon after an incident closed reopens it; a quarter of it in a thinned log."""

BAD_RECORDS = 3
"""Non-finite losses in a row that have come to stay."""

HARD_BATCH_SCALES = 3.0
"""A single high loss whose next two are within so many scales was a hard batch."""

RISE_RECORDS = 16
"""Still rising is judged by the mean of the last 16 losses against the 16 before."""

FAR_NATS, FAR_SCALES = 1.0, 20.0
"""A loss that has risen by both and does not fall is divergent. Source: published diagnoses."""

SILENT = frozenset(
    {
        Symptom.RISING_LOSS,
        Symptom.NONFINITE_NORM,
        Symptom.SCALE_COLLAPSE,
        Symptom.NONFINITE_GRAD_NORM,
        Symptom.MISSING_LOSS,
        Symptom.DATA_BACK,
        Symptom.REPEATED_BATCH,
        Symptom.LR_JUMP,
        Symptom.LR_RISING,
        Symptom.FROZEN,
        Symptom.NORM_DRIFT,
        Symptom.STATE_LOST,
        Symptom.STALL,
        Symptom.SLOW,
        Symptom.UPDATE_SHIFT,
        Symptom.ACTIVATION_JUMP,
        Symptom.LARGE_LOGITS,
        Symptom.ODD_TOKENS,
    }
)
"""What alarms without the loss: until it moves, the incident is silent."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """The working state behind an incident; `snapshot` is what others see."""

    number: int
    onset: Moment
    peak: Moment
    last: Moment
    baseline_mean: float | None
    baseline_deviation: float | None
    stride: float
    """Steps from record to record before the onset."""
    tail: deque[Moment]
    """The latest records with a finite loss."""
    findings: list[Finding] = field(default_factory=list)
    num_findings: int = 0
    records: int = 0
    waiting: int = 0
    """Records since the incident was opened or reopened."""
    bad_records: int = 0
    """Non-finite losses in a row, up to the last."""
    was_lost: bool = False
    """Whether non-finite losses had come to stay: then it was divergent, whatever follows."""
    incident_class: IncidentClass | None = None
    outlook: Outlook | None = None
    new_level: float | None = None
    end: Moment | None = None

    @classmethod
    def begin(
        cls,
        number: int,
        onset: Moment,
        before: Sequence[Moment],
        alarms: Sequence[Finding],
    ) -> "Episode":
        """Open an incident on these alarms, with the records before its onset as baseline."""
        losses = [m.loss for m in before if m.loss is not None and math.isfinite(m.loss)]
        level, scale = _usual(losses)
        moves = [after.step - m.step for m, after in pairwise(before[-PACE_RECORDS:])]
        opened = cls(
            number=number,
            onset=onset,
            peak=onset,
            last=onset,
            baseline_mean=level,
            baseline_deviation=scale,
            stride=max(median(moves), 1.0) if moves else 1.0,
            tail=deque(maxlen=2 * RISE_RECORDS),
        )
        opened.join(alarms)
        if all(alarm.symptom in SILENT for alarm in alarms):
            opened.incident_class = IncidentClass.SILENT
        return opened

    def join(self, alarms: Sequence[Finding]) -> bool:
        """Take further alarms; whether one of them is of a kind not seen here before."""
        self.num_findings += len(alarms)
        known = {finding.symptom for finding in self.findings}
        new = [alarm for alarm in alarms if alarm.symptom not in known]
        self.findings += new
        loud = any(alarm.symptom not in SILENT for alarm in alarms)
        if self.incident_class is IncidentClass.SILENT and loud:
            self.incident_class = None  # no longer silent: the loss will say
        return bool(new)

    def reopen(self, alarms: Sequence[Finding]) -> None:
        """Go on with an incident that had been closed."""
        self.end, self.new_level, self.outlook, self.waiting = None, None, None, 0
        self.incident_class = None
        self.join(alarms)

    def see(self, moment: Moment, *, is_waiting: bool = True) -> None:
        """Take a record that has a loss."""
        self.last = moment
        self.records += 1
        self.waiting += is_waiting
        if moment.loss is not None and math.isfinite(moment.loss):
            self.tail.append(moment)
            self.bad_records = 0
        else:
            self.bad_records += 1
            self.was_lost |= self.bad_records >= BAD_RECORDS
        if _badness(moment) > _badness(self.peak):
            self.peak = moment

    @property
    def is_finite(self) -> bool:
        """Whether the latest loss is finite."""
        return self.last.loss is not None and math.isfinite(self.last.loss)

    @property
    def recovery_records(self) -> int:
        """Records that a recovery may take."""
        return max(RECOVERY_RECORDS, math.ceil(RECOVERY_STEPS / self.stride))

    @property
    def reopen_records(self) -> int:
        """Records after the end within which an alarm opens it again."""
        return REOPEN_RECORDS if self.stride < 2 else REOPEN_RECORDS // 4

    def is_due(self) -> bool:
        """Whether the time that a recovery may take is over, or a NaN has come to stay."""
        return self.bad_records >= BAD_RECORDS or self.waiting > self.recovery_records

    def is_settled(self) -> bool:
        """Whether the level must be taken as the new normal."""
        return self.is_finite and self.waiting > SETTLED * self.recovery_records

    def is_back(self) -> bool:
        """Whether the loss has come back to where it was."""
        if not self.is_finite:
            return False
        if self.baseline_mean is None or self.baseline_deviation is None:
            return True  # too few losses came before: finite again is all that can be asked
        count = self._back_records
        if self.waiting < count or len(self.tail) < count:
            return False
        scales = BACK_SCALES if count > 1 else BACK_SCALES_SINGLE
        now = median(self._losses[-count:])
        return now <= self.baseline_mean + scales * self.baseline_deviation

    def is_hard_batch(self) -> bool:
        """Whether one high loss was followed by two usual ones."""
        if self.waiting != 3 or self.stride >= 2 or self.onset.tick != self.peak.tick:
            return False
        if self.baseline_mean is None or self.baseline_deviation is None or len(self.tail) < 3:
            return False
        if any(finding.symptom is not Symptom.LOSS_SPIKE for finding in self.findings):
            return False
        limit = self.baseline_mean + HARD_BATCH_SCALES * self.baseline_deviation
        return self.records == 3 and max(self._losses[-2:]) <= limit

    def class_if_back(self) -> IncidentClass:
        """The class of an incident whose loss is back."""
        in_time = self.records <= self.recovery_records + self._back_records
        return self._kept_class() or (
            IncidentClass.RECOVERABLE if in_time else IncidentClass.LINGERING
        )

    def class_if_not_back(self) -> IncidentClass:
        """The class of an incident whose loss did not come back in time."""
        runs_away = not self.is_finite or self._runs_away()
        return self._kept_class() or (
            IncidentClass.DIVERGENT if runs_away else IncidentClass.LINGERING
        )

    def foresee(self) -> bool:
        """Look ahead at the set times; whether there is a new outlook."""
        if self.waiting not in OUTLOOK_RECORDS or self.stride >= 2:
            return False
        level, scale = self.baseline_mean, self.baseline_deviation
        if level is None or scale is None or self.incident_class is not None:
            return False
        outlook = foresee(self._losses, level, scale, self.last.loss, self.waiting)
        self.outlook = outlook or self.outlook
        return outlook is not None

    def change(self, transition: Transition, tick: int) -> IncidentChange:
        """A transition with the incident as it stands."""
        return IncidentChange(transition=transition, tick=tick, incident=self.snapshot())

    def snapshot(self) -> Incident:
        """The incident as it stands."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(Incident)}
        return Incident(**{**fields, "findings": tuple(self.findings)})

    def state_dict(self) -> dict[str, Any]:
        """All of it in JSON's terms."""
        return {
            "incident": dataclasses.asdict(self.snapshot()),
            "tail": [[moment.step, moment.tick, moment.loss] for moment in self.tail],
            "waiting": self.waiting,
            "bad_records": self.bad_records,
            "was_lost": self.was_lost,
            "stride": self.stride,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Episode":
        """The episode that `state_dict` described."""
        incident = Incident.from_state(state["incident"])
        fields = {f.name: getattr(incident, f.name) for f in dataclasses.fields(incident)}
        return cls(
            **{**fields, "findings": list(incident.findings)},
            tail=deque(
                (Moment(step=step, tick=tick, loss=loss) for step, tick, loss in state["tail"]),
                maxlen=2 * RISE_RECORDS,
            ),
            waiting=state["waiting"],
            bad_records=state["bad_records"],
            was_lost=state["was_lost"],
            stride=state["stride"],
        )

    @property
    def _back_records(self) -> int:
        return BACK_RECORDS if self.recovery_records >= 4 * BACK_RECORDS else 1

    @property
    def _losses(self) -> list[float]:
        return [moment.loss for moment in self.tail if moment.loss is not None]

    def _kept_class(self) -> IncidentClass | None:
        """The class that a later loss does not change."""
        if self.was_lost:
            return IncidentClass.DIVERGENT
        is_silent = self.incident_class is IncidentClass.SILENT
        return IncidentClass.SILENT if is_silent else None

    def _runs_away(self) -> bool:
        losses = self._losses
        if (
            len(losses) < RISE_RECORDS // 2
            or self.baseline_mean is None
            or self.baseline_deviation is None
        ):
            return False
        half = len(losses) // 2
        before, lately = sum(losses[:half]) / half, sum(losses[-half:]) / half
        height, rise = lately - self.baseline_mean, lately - before
        is_far = height > max(FAR_NATS, FAR_SCALES * self.baseline_deviation)
        return rise > self.baseline_deviation or (is_far and rise >= 0)


def _usual(losses: Sequence[float]) -> tuple[float | None, float | None]:
    """Level and scale of the losses before an onset; None if there are too few."""
    if len(losses) < 8:
        return None, None
    level = median(losses[-32:])
    spread = 1.4826 * median([abs(loss - median(losses)) for loss in losses])
    return level, max(spread, 0.002 * abs(level))


def _badness(moment: Moment) -> float:
    """A number that orders losses from good to bad: non-finite is worse than any finite."""
    if moment.loss is None:
        return -math.inf
    return moment.loss if math.isfinite(moment.loss) else math.inf
