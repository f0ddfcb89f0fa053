"""Controller: the first rank looks at open incidents at every boundary and orders what to do.

    judge --> incidents --> Situation --> decide --> Decision --> Order, carried out by all ranks
                               ^                        |
                     probe's reading, settings          `--> decisions.jsonl, journal, log

Everything that decides is pure (`policy/ladder`); this file collects and orders.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.core.block import Record
from trimtab.core.config import LadderConfig
from trimtab.core.events import DECISION
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.decide.costs import FACT
from trimtab.decide.ladder import BAD_IN_A_ROW, DecisionLog, decide, read_decisions
from trimtab.decide.situation import STUCK, Act, Decision, Situation
from trimtab.decide.suspects import suspect_source
from trimtab.journal.exit_request import supervisor_folder
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.decide import evidence
from trimtab.live.recover.decide.acting import ORDER_BOUNDARIES, Acting
from trimtab.live.recover.decide.asking import Asking
from trimtab.live.recover.decide.canary import Canary
from trimtab.live.recover.decide.experimenting import Experimenting
from trimtab.live.recover.decide.new_sources import NewSources
from trimtab.live.recover.decide.probing import PROBE_AGE, Probing
from trimtab.live.recover.decide.rank_watch import RankWatch
from trimtab.live.recover.decide.remedies import Remedy, RemedyHistory
from trimtab.live.recover.decide.run_view import RunView
from trimtab.live.recover.decide.situations import situation_of
from trimtab.live.recover.order import Order
from trimtab.live.recover.paired_probe import ProbeReading
from trimtab.live.shield import log

DATING_BOUNDARIES = 8
"""Boundaries that detectors have to date harm which the canary has found: they know where it began,
and the canary does not. Source: sharp faults raise an alarm within 4 steps and the lag."""

SETTLED = frozenset({IncidentClass.HARD_BATCH, IncidentClass.RECOVERABLE, IncidentClass.PLATEAU})
"""Incidents that closed like this need nothing any more."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    """An incident that is looked at."""

    symptoms: tuple[str, ...] = ()
    look_at: int | None = 0
    """Steps since the alarm at which to decide next; None if it is left alone."""
    reading: float | None = None
    reading_waited: int = -1


class Controller:
    """Decides, on the first rank."""

    def __init__(
        self,
        recorder: RunRecorder,
        config: LadderConfig,
        order: Callable[[Order], None],
        keep_before: Callable[[int | None], None],
        experimenting: Experimenting | None = None,
    ) -> None:
        self._recorder = recorder
        self._config = config
        self._keep_before = keep_before
        """Keeps the newest snapshot before a step, while an incident that began there is open."""
        self._log = DecisionLog(recorder.run.decisions, config)
        self._history = RemedyHistory()
        for situation, act in read_decisions(recorder.run.decisions):
            if act is Act.RELAUNCH:  # by the process before this one
                self._history.add_relaunch(situation)
        self._acting = Acting(recorder, self._history, order)
        self._watched: dict[int, _Watched] = {}
        self._planned_changes: list[int] = []
        self._boundary = 0
        """Boundaries so far; steps go back, these do not."""
        self._busy_until = 0
        """The boundary up to which an order may be on its way to the other ranks."""
        self._suspicion: tuple[Situation, int] | None = None
        """Harm that only the canary has found; detectors may date it up to this boundary."""
        self._probing = Probing(recorder, order)
        self._canary = Canary(self._probing, self._confirm, self._on_rise)
        self._new_sources = NewSources()
        self._rank_watch = RankWatch(order)
        self.experimenting = experimenting
        """Makes experiments on an incident before anything is decided about it."""
        self._acting.verifies = experimenting is not None and experimenting.is_enabled
        self._asking = Asking(recorder, config.approve_seconds)

    def planned_change(self, step: int) -> None:
        """The user has announced a change: settings and data may differ from here on."""
        self._planned_changes.append(step)
        self._probing.planned_change(step)
        self._canary.planned_change()

    def look(self, view: RunView) -> None:
        """Look at the run between two steps, and order what is to be done."""
        self._boundary += 1
        self._acting.release_rate(view)
        self._asking.poll(view)
        if (source := self._new_sources.look(view)) is not None:
            log.info("trimtab: batches of a new source: %s", source)
            self._canary.watch_source(self._boundary)
        self._look(view)

    def rolled_back(self, step: int) -> None:
        """The run has gone back: a probe that was under way was about what is no more."""
        self._probing.rolled_back(step)
        self._canary.rolled_back(step)
        self._asking.cancel()
        self._busy_until, self._suspicion = self._boundary, None

    def on_reading(self, reading: ProbeReading | None, view: RunView) -> None:
        """A probe was carried out; None if a rank could not."""
        self._probing.on_reading(reading, view)

    def _look(self, view: RunView) -> None:
        incidents = self._recorder.incidents
        if self._asking.is_waiting or self._probing.is_under_way:
            return
        if self._boundary < self._busy_until:
            return
        remedy = self._history.due(view.step)
        if remedy is not None:
            self._check(remedy, view)
            return
        bad_rank = self._rank_watch.look(self._recorder.recent, view, self._boundary)
        if bad_rank is not None:
            self._decide_by_reading(bad_rank, view)
            return
        is_watching, oldest = False, None
        for incident in incidents:
            watched = self._watched.setdefault(incident.number, _Watched())
            if self._is_over(incident, watched):
                continue
            if self.experimenting is not None and self.experimenting.look(incident, view):
                self._keep_before(evidence.onset_of(incident))
                return
            if self._is_due(incident, watched, view) and self._decide(incident, watched, view):
                return
            if watched.look_at is not None:
                is_watching, onset = True, evidence.onset_of(incident)
                oldest = onset if oldest is None else min(oldest, onset)
        self._keep_before(oldest)
        if is_watching:
            self._suspicion = None
        if self._suspicion is None:
            if not is_watching or self._canary.is_watching(self._boundary):
                self._canary.look(self._boundary, view)
        elif self._boundary >= self._suspicion[1]:
            situation, self._suspicion = self._suspicion[0], None
            self._decide_by_reading(situation, view)

    # Incidents.

    def _is_over(self, incident: Incident, watched: _Watched) -> bool:
        if incident.end is None:
            return False
        if incident.rolled_back or incident.incident_class in SETTLED:
            watched.look_at = None
        return watched.look_at is None

    def _is_due(self, incident: Incident, watched: _Watched, view: RunView) -> bool:
        """Whether there is anything new to decide upon."""
        found = evidence.alarms(incident)
        symptoms = tuple(dict.fromkeys(finding.symptom for finding in found))
        if symptoms != watched.symptoms:
            watched.symptoms, watched.look_at = symptoms, 0
        in_a_row, recently = evidence.count_bad(self._recorder.recent)
        if in_a_row == BAD_IN_A_ROW or recently == STUCK:
            watched.look_at = 0
        return watched.look_at is not None and view.step - found[0].step >= watched.look_at

    def _decide(self, incident: Incident, watched: _Watched, view: RunView) -> bool:
        """Decide about an incident; whether anything was ordered."""
        records = self._recorder.recent
        if not evidence.oddity(records, evidence.onset_of(incident)).is_known:
            return False  # the next two records show whether it was the batch
        situation = self._complete(
            situation_of(
                incident,
                records,
                view,
                probe=watched.reading,
                probe_waited=watched.reading_waited,
                planned_changes=self._planned_changes,
            ),
            view,
        )
        decision = decide(situation, self._config)
        self._report(situation, decision)
        watched.look_at = decision.look_again
        if evidence.BATCH_SYMPTOMS.intersection(situation.symptoms):
            self._canary.read_soon()
        if decision.act is Act.WAIT:
            return False
        if decision.act is Act.PROBE:
            self._probe(situation, watched, view)
        else:
            watched.look_at = None
            self._act(situation, decision, view)
        return True

    def _complete(self, situation: Situation, view: RunView) -> Situation:
        """Add what does not depend on the incident: snapshots, what was tried, budgets."""
        tried = self._history.of(situation)
        known_good = self._known_good(situation, view)
        positions = evidence.positions_since(
            self._recorder.recent, situation.onset, view.next_position
        )
        rollbacks, skipped = self._history.spent(self._boundary)
        recent = self._recorder.recent
        rank = self._rank_watch.suspect
        began = situation.onset - situation.margin  # the onset may be judged late
        sources = evidence.sources(recent, began, view.source_at)
        return dataclasses.replace(
            situation,
            source=suspect_source(*sources),
            suspect_rank=rank,
            certainty=situation.certainty if rank is None else FACT,
            healthy=self._probing.healthy_before(situation.onset),
            can_probe=bool(known_good),
            probe_steps=max(len(known_good), 1),
            recurrences=len(tried),
            tried=tuple(remedy.act for remedy in tried),
            last_depth=tried[-1].depth if tried else 0,
            slots=view.slots,
            positions=(positions[0], positions[-1]) if positions else None,
            note="; ".join(
                filter(None, (evidence.precision_note(recent, situation.onset), self._probing.note))
            ),
            resumed_at=self._recorder.resumed_at,
            rollbacks=rollbacks,
            skipped=skipped,
            lr_reductions=self._history.num_lr_reductions,
            relaunches_left=self._relaunches_left,
        )

    @property
    def _relaunches_left(self) -> int:
        """How often something would still start the run again."""
        # `trimtab run` has a budget of its own; one try here tells whether it helps.
        allowed = max(self._config.max_relaunches, int(supervisor_folder() is not None))
        return max(allowed - self._history.num_relaunches, 0)

    # Probes.

    def _known_good(self, situation: Situation, view: RunView) -> list[Record]:
        return self._probing.records_before(situation.onset - situation.margin + 1, view)

    def _probe(self, situation: Situation, watched: _Watched, view: RunView) -> None:
        def then(value: float, now: RunView) -> None:
            watched.reading, watched.reading_waited, watched.look_at = value, situation.waited, 0
            self._look(now)

        self._probing.start(self._known_good(situation, view), view, then, "incident")

    def _check(self, remedy: Remedy, view: RunView) -> None:
        """Has a remedy helped? One probe, where it can be made."""
        remedy.is_checked = True
        situation, act = remedy.situation, remedy.act.value
        records = self._known_good(situation, view)
        if not records:
            self._recorder.event("check", view.step, {"act": act, "helped": None})
            return

        def then(value: float, now: RunView) -> None:
            reading = self._probing.reading(value, len(records), before=situation.onset)
            # As much evidence as the canary needs: a deeper rollback costs more than this one did.
            helped = not reading.shows_forgetting
            facts = {"act": act, "helped": helped, "value": value}
            self._recorder.event("check", now.step, facts)
            words = f"{act} at step {situation.onset} {'helped' if helped else 'has NOT helped'}"
            log.warning("trimtab: %s (probe %+.3f)", words, value)
            if not helped:
                self._decide_by_reading(dataclasses.replace(situation, probe=value), now)

        self._probing.start(records, view, then, "check")

    def _confirm(self, last_good: int, first: float, view: RunView) -> None:
        """The canary reads too high: probe with more batches, from before its last good reading."""
        unknown = Situation(step=view.step, onset=last_good, waited=0, certainty=FACT)
        records = self._known_good(unknown, view)
        if not records:
            return

        def then(value: float, now: RunView) -> None:
            if not self._probing.reading(value, len(records)).shows_forgetting:
                self._probing.add_healthy(now.step, first)
            else:
                # What the loss did since may be the harm itself: garbage is learnt fast.
                slope = evidence.slope(self._recorder.recent, last_good - PROBE_AGE // 2)
                harmed = dataclasses.replace(unknown, probe=value, slope=slope)
                self._suspicion = harmed, self._boundary + DATING_BOUNDARIES

        self._probing.start(records, view, then, "canary again")

    def _on_rise(self, last_good: int, rise: float, view: RunView) -> None:
        """The loss of known-good batches rises, and no detector has found why."""
        slope = evidence.slope(self._recorder.recent, last_good - PROBE_AGE // 2)
        risen = Situation(step=view.step, onset=last_good, waited=0, certainty=FACT, rise=rise)
        changed = evidence.text_changed(self._recorder.incidents, last_good)
        self._decide_by_reading(dataclasses.replace(risen, slope=slope, text_changed=changed), view)

    def _decide_by_reading(self, situation: Situation, view: RunView) -> None:
        """Decide where a probe has found harm, whatever the detectors say."""
        waited = view.step - situation.onset
        known = dataclasses.replace(
            situation, step=view.step, waited=waited, probe_waited=max(waited, 0)
        )
        complete = self._complete(known, view)
        decision = decide(complete, self._config)
        self._report(complete, decision)
        if decision.act not in (Act.WAIT, Act.PROBE):
            self._act(complete, decision, view)

    def _act(self, situation: Situation, decision: Decision, view: RunView) -> None:
        if self._config.approve == "ask":
            self._asking.propose(decision, view, lambda now: self._do(situation, decision, now))
        else:
            self._do(situation, decision, view)

    def _do(self, situation: Situation, decision: Decision, view: RunView) -> None:
        self._busy_until = self._boundary + ORDER_BOUNDARIES
        self._acting.act(situation, decision, view, self._boundary)

    def _report(self, situation: Situation, decision: Decision) -> None:
        """Write a decision down."""
        self._log.append(situation, decision)
        cost = decision.chosen.cost
        facts = {
            "incident": situation.incident,
            "act": decision.act.value,
            "cost": cost if math.isfinite(cost) else None,
            "reason": decision.reason,
            "hold": list(dict.fromkeys(part.option for part in decision.chosen.holds)),
        }
        self._recorder.event(DECISION, situation.step, facts)
        if decision.act not in (Act.WAIT, Act.PROBE):
            log.warning("trimtab: %s: %s", decision.act.value, decision.reason)
