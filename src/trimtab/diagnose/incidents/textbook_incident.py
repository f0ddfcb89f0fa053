"""OpenIncident: what is known so far about one incident, and the textbook rules that class it."""

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.core.config import TextbookConfig
from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Moment, Transition
from trimtab.detect.tools.windows import mean_and_deviation

_SILENT = {Symptom.RISING_LOSS, Symptom.NONFINITE_NORM}

RISE_RECORDS = 10
"""Still rising is judged on the last 10 losses against the 10 before, by more than one deviation:
the textbook asks for "still rising" without a number; two means of 10 differ by noise alone by
0.45 deviations, so one whole deviation is a little over two standard errors."""


@dataclass(slots=True, kw_only=True)
class OpenIncident:
    """The working state behind an incident; `snapshot` is what others see."""

    config: TextbookConfig
    number: int
    onset: Moment
    peak: Moment
    last: Moment
    baseline_mean: float | None
    baseline_deviation: float | None
    tail: deque[float]
    """The latest finite losses, as many as a recovery may take."""
    findings: list[Finding] = field(default_factory=list)
    num_findings: int = 0
    records: int = 0
    waiting: int = 0
    """Records since the incident was opened or reopened."""
    incident_class: IncidentClass | None = None
    end: Moment | None = None
    outlook: None = None
    new_level: None = None
    """The textbook looks neither ahead nor back: both stay empty."""

    @classmethod
    def begin(
        cls,
        number: int,
        onset: Moment,
        alarms: Sequence[Finding],
        baseline: Sequence[float],
        config: TextbookConfig,
    ) -> "OpenIncident":
        """Open an incident on these alarms, with the losses before it as its baseline."""
        silent = all(alarm.symptom in _SILENT for alarm in alarms)
        mean, deviation = mean_and_deviation(baseline) if len(baseline) > 1 else (None, None)
        opened = cls(
            config=config,
            number=number,
            onset=onset,
            peak=onset,
            last=onset,
            baseline_mean=mean,
            baseline_deviation=deviation,
            tail=deque(maxlen=config.recovery_records),
            incident_class=IncidentClass.SILENT if silent else None,
        )
        opened.join(alarms)
        return opened

    def join(self, alarms: Sequence[Finding]) -> bool:
        """Take further alarms; whether one of them is of a kind not seen here before."""
        self.num_findings += len(alarms)
        known = {finding.symptom for finding in self.findings}
        new = [alarm for alarm in alarms if alarm.symptom not in known]
        self.findings += new
        if self.incident_class is IncidentClass.SILENT and any(
            alarm.symptom not in _SILENT for alarm in alarms
        ):
            self.incident_class = None  # no longer silent: the loss will say
        return bool(new)

    def reopen(self, alarms: Sequence[Finding]) -> None:
        """Go on with an incident that had been closed."""
        self.end = None
        self.waiting = 0
        self.incident_class = None
        self.join(alarms)

    def see(self, moment: Moment) -> None:
        """Take a record that has a loss."""
        self.last = moment
        self.records += 1
        self.waiting += 1
        if moment.loss is not None and math.isfinite(moment.loss):
            self.tail.append(moment.loss)
        if _badness(moment) > _badness(self.peak):
            self.peak = moment

    @property
    def is_finite(self) -> bool:
        """Whether the latest loss is finite."""
        return self.last.loss is not None and math.isfinite(self.last.loss)

    def is_back(self) -> bool:
        """Whether the latest loss counts as recovered."""
        if self.last.loss is None or not math.isfinite(self.last.loss):
            return False
        if self.baseline_mean is None or self.baseline_deviation is None:
            return True  # too few losses came before: finite again is all that can be asked
        margin = self.config.recovery_sigmas * self.baseline_deviation
        return self.last.loss <= self.baseline_mean + margin

    def is_due(self) -> bool:
        """Whether the records that a recovery may take are over."""
        if self.incident_class is IncidentClass.DIVERGENT:  # non-finite, and judged already
            return self.is_finite
        return self.waiting > self.config.recovery_records

    def class_if_back(self) -> IncidentClass:
        """The class of an incident whose loss is back."""
        return self._kept_class() or IncidentClass.RECOVERABLE

    def class_if_not_back(self) -> IncidentClass:
        """The class of an incident whose loss did not come back in time."""
        rising = not self.is_finite or self._is_still_rising()
        return self._kept_class() or (
            IncidentClass.DIVERGENT if rising else IncidentClass.LINGERING
        )

    def class_at_the_end(self) -> IncidentClass | None:
        """The class when the log stops before the rule's time; None if nothing can be said."""
        return None if self.is_finite else IncidentClass.DIVERGENT

    def change(self, transition: Transition, tick: int) -> IncidentChange:
        """A transition with the incident as it stands."""
        return IncidentChange(transition=transition, tick=tick, incident=self.snapshot())

    def snapshot(self) -> Incident:
        """The incident as it stands."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(Incident)}
        return Incident(**{**fields, "findings": tuple(self.findings)})

    def state_dict(self) -> dict[str, Any]:
        """All of it in JSON's terms, the settings apart."""
        return {
            "incident": dataclasses.asdict(self.snapshot()),
            "tail": list(self.tail),
            "waiting": self.waiting,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], config: TextbookConfig) -> "OpenIncident":
        """The incident that `state_dict` described."""
        incident = Incident.from_state(state["incident"])
        fields = {f.name: getattr(incident, f.name) for f in dataclasses.fields(incident)}
        return cls(
            **{**fields, "findings": list(incident.findings)},
            config=config,
            tail=deque(state["tail"], maxlen=config.recovery_records),
            waiting=state["waiting"],
        )

    def _kept_class(self) -> IncidentClass | None:
        """The class that a later loss does not change."""
        kept = (IncidentClass.SILENT, IncidentClass.DIVERGENT)
        return self.incident_class if self.incident_class in kept else None

    def _is_still_rising(self) -> bool:
        losses = list(self.tail)
        if len(losses) < 2 * RISE_RECORDS or self.baseline_deviation is None:
            return False
        before, _ = mean_and_deviation(losses[-2 * RISE_RECORDS : -RISE_RECORDS])
        lately, _ = mean_and_deviation(losses[-RISE_RECORDS:])
        return lately - before > self.baseline_deviation


def _badness(moment: Moment) -> float:
    """A number that orders losses from good to bad: non-finite is worse than any finite."""
    if moment.loss is None:
        return -math.inf
    return moment.loss if math.isfinite(moment.loss) else math.inf
