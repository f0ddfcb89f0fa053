"""Judge: the only wiring of detectors, incidents, causes and policy.

    blocks --> detectors --> findings --> IncidentTracker --> incidents
                                                                  |  explain
                                               Diagnosis <--------+--------> Action

The same judge serves a live run (blocks of one record) and a finished log (one block of a million):
how a run is cut into blocks never changes the result.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentChange
from trimtab.detect.detector_set import DetectorSet
from trimtab.diagnose.context import IncidentContext, RunFacts
from trimtab.diagnose.diagnosis import diagnose
from trimtab.diagnose.incidents.tracker import IncidentTracker
from trimtab.policy.incident_report import IncidentReport
from trimtab.rulesets import RuleSet, rule_set

STATE_VERSION = 5

SAME_PLACE_STEPS = 200
"""An incident within this many steps of one in an earlier attempt has come back. Source: the
longest window of the textbook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of one block of records."""

    findings: tuple[Finding, ...]
    changes: tuple[IncidentChange, ...]


class Judge:
    """Blocks in; findings, incidents and actions out."""

    def __init__(
        self,
        config: Config | None = None,
        rules: RuleSet | str | None = None,
        detectors: Sequence[Detector] = (),
    ) -> None:
        """A judge for one run.

        Args:
            config: Settings; the defaults if None.
            rules: A rule set or the name of one of ours; the one that the config names if None.
            detectors: Detectors that run beside those of the rule set.
        """
        self._config = config or Config()
        rules = self._config.rules if rules is None else rules
        self.rules = rule_set(rules) if isinstance(rules, str) else rules
        judging = [*self.rules.make_detectors(self._config), *detectors]
        self._names = [detector.name for detector in judging]
        self._detectors = DetectorSet(judging)
        self._tracker = IncidentTracker(self.rules.make_recovery(self._config))
        self._incidents: dict[int, Incident] = {}
        """As they stood at their last change."""
        self._last_tick: int | None = None

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Every incident so far, as it now stands."""
        now = self._tracker.open_incident
        standing = self._incidents if now is None else self._incidents | {now.number: now}
        return tuple(standing.values())

    @property
    def failures(self) -> list[str]:
        """One sentence for each detector that raised and was left out."""
        return self._detectors.failures

    def update(self, block: Block) -> Judgement:
        """Judge the next records of the run; raises ValueError if they came before."""
        if len(block):
            first, last = int(block.tick[0]), self._last_tick
            if last is not None and first <= last:
                raise ValueError(
                    f"the block begins at tick {first}, but this judge has seen all ticks up to "
                    f"{last}; give it each record once and in order, or use a new judge"
                )
            self._last_tick = int(block.tick[-1])
        findings = self._detectors.update(block)
        return self._judgement(findings, self._tracker.update(block, findings))

    def finish(self) -> Judgement:
        """Classify what is still open at the end of the run, as far as possible."""
        return self._judgement([], self._tracker.finish())

    def explain(
        self, incident: Incident, run: Block, facts: RunFacts | None = None
    ) -> IncidentReport:
        """Diagnose an incident of this run and advise what to do about it.

        Records that the run has lost are treated as not recorded.
        """
        facts = facts or RunFacts()
        context = IncidentContext.of(incident, run, facts, self._config.textbook)
        diagnosis = diagnose(context, self.rules.explain)
        action = self.rules.advise(diagnosis, recurs=self._recurs(incident, run))
        return IncidentReport(diagnosis=diagnosis, action=action)

    def state_dict(self) -> dict[str, Any]:
        """The whole state as JSON values."""
        return {
            "version": STATE_VERSION,
            "settings": self._settings(),
            "last_tick": self._last_tick,
            "detectors": self._detectors.state_dict(),
            "tracker": self._tracker.state_dict(),
            "incidents": [dataclasses.asdict(incident) for incident in self.incidents],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` saved; raises ConfigError if the settings differ."""
        self._require_same(state)
        self._last_tick = state["last_tick"]
        self._detectors.load_state_dict(state["detectors"])
        self._tracker.load_state_dict(state["tracker"])
        incidents = [Incident.from_state(part) for part in state["incidents"]]
        self._incidents = {incident.number: incident for incident in incidents}

    def _settings(self) -> dict[str, Any]:
        """The settings that the state depends on."""
        return {
            "rules": self.rules.name,
            "detectors": self._names,
            **self._config.detect.to_dict(),
            **{f"textbook.{k}": v for k, v in self._config.textbook.to_dict().items()},
        }

    def _require_same(self, state: dict[str, Any]) -> None:
        saved = {"version": state.get("version"), **state.get("settings", {})}
        here = {"version": STATE_VERSION, **self._settings()}
        for name in here:
            if saved.get(name) != here[name]:
                raise ConfigError(
                    f"the saved judge has {name} {saved.get(name)}, this one has {here[name]}; "
                    "load it with the same settings, or start a new judge"
                )

    def _judgement(
        self, findings: Sequence[Finding], changes: Sequence[IncidentChange]
    ) -> Judgement:
        for change in changes:
            self._incidents[change.incident.number] = change.incident
        return Judgement(findings=tuple(findings), changes=tuple(changes))

    def _recurs(self, incident: Incident, run: Block) -> bool:
        attempt = _attempt(incident, run)
        return any(
            _attempt(other, run) < attempt
            and abs(other.onset.step - incident.onset.step) <= SAME_PLACE_STEPS
            for other in self.incidents
        )


def _attempt(incident: Incident, run: Block) -> int:
    """The attempt in which the incident began, by the nearest record if the onset was lost."""
    row = min(run.row_of(incident.onset.tick), len(run) - 1)
    return int(run.attempt[row]) if len(run) else 0
