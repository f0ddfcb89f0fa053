"""Judge: the only wiring of detectors, incidents, causes and advice.

    blocks --> detectors --> findings --> IncidentTracker --> incidents
                                                                  |  explain
                                               Diagnosis <--------+--------> Action

The same judge serves a live run (blocks of one record) and a finished log (one block of a million):
how a run is cut into blocks never changes the result.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.core.block import Block
from trimtab.core.config import Config, MetricRule
from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentChange
from trimtab.core.plugins import DETECTORS, load_plugins
from trimtab.core.run import RunFacts
from trimtab.detect.detector_set import DetectorSet
from trimtab.detect.run.metric_rules import MetricRules
from trimtab.explain.context import IncidentContext
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.incidents.tracker import IncidentTracker
from trimtab.journal.batches.batch_report import BatchReport
from trimtab.rulesets import RuleSet, rule_set

STATE_VERSION = 13

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
        *,
        plugins: bool = False,
    ) -> None:
        """Create a judge for one run.

        Args:
            config: Settings; the defaults if None.
            rules: A rule set or the name of one of ours; the one that the config names if None.
            detectors: Detectors that run beside those of the rule set.
            plugins: Whether installed plug-ins run as well; one that cannot is a failure.

        Raises ConfigError if one of `detectors` cannot be used.
        """
        self._config = config or Config()
        rules = self._config.rule_set if rules is None else rules
        self.rules = rule_set(rules) if isinstance(rules, str) else rules
        judging = [*self.rules.make_detectors(self._config), MetricRules(self._config.rules)]
        self.packages: dict[str, str] = {}
        """The package of each detector that is not trimtab's, by the detector's name."""
        for detector in detectors:
            _require_usable(detector, judging)
            judging.append(detector)
            self.packages[detector.name] = type(detector).__module__
        self._not_loaded: list[str] = []
        if plugins:
            loaded, self._not_loaded = load_plugins(
                DETECTORS,
                Detector,
                needs="the base class trimtab.core.detector.Detector, or a name",
                taken={detector.name for detector in judging},
            )
            judging += loaded.values()
            self.packages |= {found.name: plugin.package for plugin, found in loaded.items()}
        self._names = [detector.name for detector in judging]
        self._detectors = DetectorSet(judging)
        self._tracker = IncidentTracker(self.rules.make_incidents(self._config))
        self._incidents: dict[int, Incident] = {}
        """As they stood at their last change."""
        self._last_tick: int | None = None

    @property
    def metric_rules(self) -> Mapping[str, MetricRule]:
        """The user's rules, by the name of the metric."""
        return self._config.rules

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Every incident so far, as it now stands."""
        # Between two changes an open incident still gains records, and its peak may rise.
        now = {incident.number: incident for incident in self._tracker.open_incidents}
        return tuple((self._incidents | now).values())

    @property
    def failures(self) -> list[str]:
        """One sentence for each detector that failed, when it was loaded or later."""
        return [*self._not_loaded, *self._detectors.failures]

    def update(self, block: Block) -> Judgement:
        """Judge the next records of the run; raises ValueError if they came before."""
        if len(block):
            # Ticks rise through all attempts and restarts, unlike steps: a block that comes twice,
            # or too late, would be judged as a new one.
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
        self,
        incident: Incident,
        run: Block,
        facts: RunFacts | None = None,
        batch: BatchReport | None = None,
    ) -> Diagnosis:
        """Diagnose an incident of this run and advise what to do about it."""
        later = [one.onset.tick for one in self.incidents if one.onset.tick > incident.last.tick]
        context = IncidentContext.of(
            incident,
            run,
            facts or RunFacts(),
            similar=self._similar(incident, run),
            until=min(later, default=None),
        )
        harmed = (
            (one.onset.step, (one.end or one.last).step)
            for one in self._others(incident, run)
            if one.incident_class.is_severe
        )
        context = dataclasses.replace(context, harmed=tuple(harmed), batch=batch)
        diagnosis = self.rules.explain(context)
        action = self.rules.advise(diagnosis, recurs=self._recurs(incident, run))
        return dataclasses.replace(diagnosis, action=action)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as JSON values."""
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
        """Return the settings that the state depends on."""
        return {"rules": self.rules.name, "detectors": self._names, **self._config.detect.to_dict()}

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

    def _others(self, incident: Incident, run: Block) -> Iterator[Incident]:
        """Yield the other incidents that were open by the end of a block, as they were then."""
        last = int(run.tick[-1]) if len(run) else 0
        for other in self.incidents:
            found = tuple(finding for finding in other.findings if finding.tick <= last)
            if found and other.number != incident.number:
                yield dataclasses.replace(other, findings=found)

    def _similar(self, incident: Incident, run: Block) -> list[Incident]:
        """Return the other incidents of the run that began with the same symptom."""
        first = incident.symptoms[:1]
        return [other for other in self._others(incident, run) if other.symptoms[:1] == first]

    def _recurs(self, incident: Incident, run: Block) -> bool:
        attempt = _attempt(incident, run)
        return any(
            _attempt(other, run) < attempt
            and abs(other.onset.step - incident.onset.step) <= SAME_PLACE_STEPS
            and not set(other.symptoms).isdisjoint(incident.symptoms)
            for other in self._others(incident, run)
        )


def _require_usable(detector: Detector, others: Iterable[Detector]) -> None:
    if not isinstance(detector, Detector):
        raise ConfigError(f"{detector!r} is not a trimtab.core.detector.Detector")
    if detector.name in {other.name for other in others}:
        raise ConfigError(f"there is a detector {detector.name!r} already; rename yours")


def _attempt(incident: Incident, run: Block) -> int:
    """Return the attempt in which an incident began, or of the nearest record left."""
    row = min(run.row_of(incident.onset.tick), len(run) - 1)
    return int(run.attempt[row]) if len(run) else 0
