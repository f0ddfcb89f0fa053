"""Judge: the only wiring of detectors, incidents, causes and policy.

    blocks --> detectors --> findings --> IncidentTracker --> incidents
                                                                  |  explain
                                               Diagnosis <--------+--------> Action

The same judge serves a live run (blocks of one record) and a finished log (one block of a million):
how a run is cut into blocks never changes what it says.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.core.block import Block
from trimtab.core.config import Config, Rules
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentChange
from trimtab.detect.detector_set import DetectorSet
from trimtab.detect.textbook.textbook_detectors import textbook_detectors
from trimtab.detect.trimtab_detectors import trimtab_detectors
from trimtab.diagnose.context import IncidentContext, RunFacts
from trimtab.diagnose.diagnosis import diagnose
from trimtab.diagnose.incidents.textbook_tracker import IncidentTracker
from trimtab.diagnose.incidents.tracker import EpisodeTracker
from trimtab.diagnose.tree.trimtab import OWN_QUESTIONS
from trimtab.policy import own, textbook
from trimtab.policy.incident_report import IncidentReport

STATE_VERSION = 2

SAME_PLACE_STEPS = 200
"""An incident within so many steps of one in an earlier attempt has come back. Source: the longest
window of the textbook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one block of records brought."""

    findings: tuple[Finding, ...]
    changes: tuple[IncidentChange, ...]


class Judge:
    """Blocks in; findings, incidents and actions out."""

    def __init__(self, config: Config | None = None, rules: Rules | None = None) -> None:
        self._config = config or Config()
        self.rules = rules or self._config.rules
        self._detectors = _detectors(self.rules, self._config)
        self._tracker = _tracker(self.rules, self._config)
        self._incidents: dict[int, Incident] = {}
        """As they stood at their last change."""

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Every incident so far, as it now stands."""
        now = self._tracker.open_incident
        standing = self._incidents if now is None else self._incidents | {now.number: now}
        return tuple(standing.values())

    def feed(self, block: Block) -> Judgement:
        """Take the next records of the run."""
        findings = self._detectors.update(block)
        changes = self._tracker.feed(block, findings)
        return self._judgement(findings, changes)

    def finish(self) -> Judgement:
        """The run has ended: say of what is still open what can be said."""
        return self._judgement([], self._tracker.finish())

    def explain(
        self, incident: Incident, run: Block, facts: RunFacts | None = None
    ) -> IncidentReport:
        """Diagnose an incident of this run and say what to do about it."""
        case = IncidentContext.of(incident, run, facts or RunFacts(), self._config.textbook)
        recurs = self._recurs(incident, run)
        if self.rules is Rules.TEXTBOOK:
            diagnosis = diagnose(case)
            return IncidentReport(
                diagnosis=diagnosis, action=textbook.advise(diagnosis, recurs=recurs)
            )
        diagnosis = diagnose(case, OWN_QUESTIONS)
        return IncidentReport(diagnosis=diagnosis, action=own.advise(diagnosis, recurs=recurs))

    def state_dict(self) -> dict[str, Any]:
        """All that the judge remembers, in JSON's terms."""
        return {
            "version": STATE_VERSION,
            "rules": self.rules.value,
            "detectors": self._detectors.state_dict(),
            "tracker": self._tracker.state_dict(),
            "incidents": [dataclasses.asdict(incident) for incident in self.incidents],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the judge that `state_dict` described."""
        found = (state.get("version"), state.get("rules"))
        if found != (STATE_VERSION, self.rules.value):
            raise ConfigError(
                f"the saved judge has version and rules {found}, this one has "
                f"{(STATE_VERSION, self.rules.value)}; start a new judge instead"
            )
        self._detectors.load_state_dict(state["detectors"])
        self._tracker.load_state_dict(state["tracker"])
        incidents = [Incident.from_state(part) for part in state["incidents"]]
        self._incidents = {incident.number: incident for incident in incidents}

    def _judgement(
        self, findings: Sequence[Finding], changes: Sequence[IncidentChange]
    ) -> Judgement:
        for change in changes:
            self._incidents[change.incident.number] = change.incident
        return Judgement(findings=tuple(findings), changes=tuple(changes))

    def _recurs(self, incident: Incident, run: Block) -> bool:
        attempt = run.attempt[run.row_of(incident.onset.tick)]
        return any(
            run.attempt[run.row_of(other.onset.tick)] < attempt
            and abs(other.onset.step - incident.onset.step) <= SAME_PLACE_STEPS
            for other in self.incidents
        )


def _tracker(rules: Rules, config: Config) -> IncidentTracker | EpisodeTracker:
    match rules:
        case Rules.TRIMTAB:
            return EpisodeTracker()
        case Rules.TEXTBOOK:
            return IncidentTracker(config.textbook)


def _detectors(rules: Rules, config: Config) -> DetectorSet:
    match rules:
        case Rules.TRIMTAB:
            return DetectorSet(trimtab_detectors(config))
        case Rules.TEXTBOOK:
            return DetectorSet(textbook_detectors(config))
