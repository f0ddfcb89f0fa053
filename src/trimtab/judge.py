"""Judge: the only wiring of detectors, incidents, causes and advice.

    blocks --> detectors --> findings --> IncidentTracker --> incidents
                                                                  |  explain
                                               Diagnosis <--------+--------> Action

The same judge serves a live run (blocks of one record) and a finished log (one block of a million):
how a run is cut into blocks never changes the result.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.block import Block, Event
from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError
from trimtab.core.events import (
    RECOVERY,
    before_rollback,
    cut_at_rollbacks,
    line_to,
    rollback_target,
)
from trimtab.core.findings import Finding
from trimtab.core.incidents import Incident, IncidentChange, Transition
from trimtab.core.plugins import DETECTORS, load_plugins
from trimtab.core.run import RunFacts
from trimtab.detect.detector_set import DetectorSet
from trimtab.explain.context import IncidentContext, went_well_again
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.incidents.tracker import IncidentTracker
from trimtab.rulesets import RuleSet, rule_set

STATE_VERSION = 6

MIN_HISTORY = 1024
"""Records that are kept at least of a run that can roll back."""

MAX_PIECE = 8192
"""Records of such a run that are judged at once: a bound on what is judged again."""

MARK_RECORDS = 256
"""Records from one kept state to the next: a state takes some milliseconds to make."""

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
        rules = self._config.rules if rules is None else rules
        self.rules = rule_set(rules) if isinstance(rules, str) else rules
        judging = list(self.rules.make_detectors(self._config))
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
        self._tracker = IncidentTracker(self.rules.make_closing(self._config))
        self._incidents: dict[int, Incident] = {}
        """As they stood at their last change."""
        self._last_tick: int | None = None
        self._history: _History | None = None
        """Only of a run that can roll back."""

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Every incident so far, as it now stands."""
        # Between two changes an open incident still gains records, and its peak may rise.
        now = self._tracker.open_incident
        standing = self._incidents if now is None else self._incidents | {now.number: now}
        return tuple(standing.values())

    @property
    def failures(self) -> list[str]:
        """One sentence for each detector that failed, when it was loaded or later."""
        return [*self._not_loaded, *self._detectors.failures]

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
        findings: list[Finding] = []
        changes: list[IncidentChange] = []
        for rollback, piece in cut_at_rollbacks(block):
            change, is_rewound = self._rewind(rollback) if rollback else ([], False)
            changes += change
            if rollback and is_rewound:
                # The detectors must know that the next attempt continues what they know.
                piece = dataclasses.replace(piece, events=(rollback, *piece.events))
            self._start_history(piece)
            for part in self._parts(piece):
                found = self._detectors.update(part)
                findings += found
                changes += self._tracker.update(part, found)
        return self._judgement(findings, changes)

    def finish(self) -> Judgement:
        """Classify what is still open at the end of the run, as far as possible."""
        return self._judgement([], self._tracker.finish())

    def explain(self, incident: Incident, run: Block, facts: RunFacts | None = None) -> Diagnosis:
        """Diagnose an incident of this run and advise what to do about it.

        Records that the run has lost are treated as not recorded.
        """
        facts = facts or RunFacts()
        line = line_to(run, incident.onset.tick)
        if incident.rolled_back:
            line = before_rollback(line, incident.last.tick)
        again = went_well_again(incident, self.incidents, run)
        context = IncidentContext.of(incident, line, facts, went_well_again=again)
        diagnosis = self.rules.explain(context)
        action = self.rules.advise(diagnosis, recurs=self._recurs(incident, run))
        return dataclasses.replace(diagnosis, action=action)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as JSON values."""
        return {
            "version": STATE_VERSION,
            "settings": self._settings(),
            "last_tick": self._last_tick,
            **self._judging_state(),
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

    def _start_history(self, piece: Block) -> None:
        """Keep what is needed to rewind, from the first record of a run that can roll back on."""
        for event in piece.events:
            if event.kind == RECOVERY and self._history is None:
                oldest = event.facts.get("oldest_steps")
                steps = oldest if isinstance(oldest, int) else 0
                self._history = _History(depth=MIN_HISTORY + 4 * steps)

    def _parts(self, piece: Block) -> Iterator[Block]:
        """Yield a piece as it is judged, and note each part in the history if there is one."""
        if self._history is None:
            yield piece
            return
        for part in list(piece.cut(MAX_PIECE)) or [piece]:
            self._history.add(part, self._tracker.num_incidents, self._judging_state)
            yield part

    def _judging_state(self) -> dict[str, Any]:
        return {
            "detectors": self._detectors.state_dict(),
            "tracker": self._tracker.state_dict(),
        }

    def _rewind(self, rollback: Event) -> tuple[list[IncidentChange], bool]:
        """Restore what this judge was before the step that the run has returned to.

        An incident that began later is closed. Returns what changed, and whether the past was
        known; if not, the next attempt starts like one after a restart.
        """
        to, history = rollback_target(rollback), self._history
        known = None if to is None or history is None else history.return_to(to)
        was_open, num_incidents = self._tracker.open_incident, self._tracker.num_incidents
        if known is None:
            return [], False
        state = known[0].state or {}
        # With the same data and settings the earlier attempt is a reference for this one.
        is_same = not (rollback.facts.get("skip") or rollback.facts.get("hold"))
        findings = self._detectors.rewind(
            state["detectors"], [piece.block for piece in known], is_same=is_same
        )
        self._tracker.load_state_dict(state["tracker"])
        for piece, found in zip(known, findings, strict=True):
            # Judged again, an incident keeps the number that it had.
            self._tracker.num_incidents = piece.num_incidents
            self._tracker.update(piece.block, found)
        self._tracker.num_incidents = num_incidents
        now_open = self._tracker.open_incident
        if was_open is None or (now_open is not None and now_open.number == was_open.number):
            return [], True
        closed = dataclasses.replace(
            was_open, end=was_open.last, incident_class=None, outlook=None, rolled_back=True
        )
        change = IncidentChange(
            transition=Transition.ROLLED_BACK, tick=closed.last.tick, incident=closed
        )
        return [change], True

    def _settings(self) -> dict[str, Any]:
        """Return the settings that the state depends on."""
        return {
            "rules": self.rules.name,
            "detectors": self._names,
            **self._config.detect.to_dict(),
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
            and not set(other.symptoms).isdisjoint(incident.symptoms)
            for other in self.incidents
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


# What is kept to judge again after a rollback:
#
#     state --> block --> block --> block, state --> block --> ...
#
# A state of the judge is kept every few hundred records, and the records since. What the judge was
# before a certain step is the last state before it and the records in between: how a run is cut
# into blocks never changes the result.


@dataclass(slots=True)
class _Piece:
    """Records that were judged together."""

    block: Block
    num_incidents: int
    """How many incidents there had been before."""
    state: dict[str, Any] | None
    """What the judge was before, if that is kept here."""


class _History:
    """The last `depth` records at least, and states from which they can be judged again."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pieces: list[_Piece] = []
        self._since_mark = 0
        self._is_whole = True
        """Whether nothing was dropped yet."""

    def add(
        self, block: Block, num_incidents: int, make_state: Callable[[], dict[str, Any]]
    ) -> None:
        """Add records that are about to be judged."""
        state = None
        if not self._pieces or self._since_mark >= MARK_RECORDS:
            state, self._since_mark = make_state(), 0
        self._since_mark += len(block)
        self._pieces.append(_Piece(block, num_incidents, state))
        self._forget()

    def return_to(self, step: int) -> list[_Piece] | None:
        """Return the records before a step, the first with its state, and forget all later ones.

        None if the history does not reach back to it.
        """
        kept = list(self._pieces)
        while kept and not (kept[-1].block.step < step).any():
            kept.pop()
        if not kept:
            first = self._pieces[0] if self._pieces else None
            if first is None or not (self._is_whole or step in first.block.step[:1]):
                return None
            kept.append(_Piece(first.block[:0], first.num_incidents, first.state))
        last = kept[-1]
        rows = np.flatnonzero(last.block.step < step)
        end = int(rows[-1]) + 1 if len(rows) else 0
        if end < len(last.block):
            kept[-1] = _Piece(last.block[:end], last.num_incidents, last.state)
        self._pieces = kept
        mark = max(at for at, piece in enumerate(kept) if piece.state is not None)
        self._since_mark = sum(len(piece.block) for piece in kept[mark:])
        return kept[mark:]

    def _forget(self) -> None:
        """Drop what is older than `depth`, up to a state."""
        marks = [at for at, piece in enumerate(self._pieces) if piece.state is not None]
        for mark in reversed(marks[1:]):
            if sum(len(piece.block) for piece in self._pieces[mark:]) >= self.depth:
                del self._pieces[:mark]
                self._is_whole = False
                return
