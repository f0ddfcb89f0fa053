"""Controller: the first rank looks at open incidents at every boundary and orders what to do.

    judge --> incidents --> Situation --> decide --> Decision --> Order, carried out by all ranks
                               ^                        |
                     probe's reading, settings          `--> decisions.jsonl, journal, log

Everything that decides is pure (`policy/ladder`); this file collects and orders.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trimtab.core.builder import Record
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.ladder_config import LadderConfig
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover import evidence
from trimtab.live.recover.order import Order, ProbeStep
from trimtab.live.recover.remedies import Remedy, RemedyHistory
from trimtab.live.shield import log
from trimtab.policy.ladder.canary import CANARY_STEPS, canary_every
from trimtab.policy.ladder.decide import check_step, decide
from trimtab.policy.ladder.decision import Decision
from trimtab.policy.ladder.decision_log import DecisionLog
from trimtab.policy.ladder.differences import SettingsView, find_differences
from trimtab.policy.ladder.origins import certainty_of
from trimtab.policy.ladder.reading import Reading, scale_of
from trimtab.policy.ladder.situation import SKIPPING, Act, SettingDifference, Situation
from trimtab.policy.symptoms import Family, family_of, traits_of

PROBE_BATCHES = 8
"""Source: with 8 batches healthy readings of the lab lie within 0.03 of each other."""

CANARY_AGE = 16
"""Steps between training on a batch and probing with it in a healthy run: about as old as the
batches that are probed after an alarm."""

SETTLED = frozenset({IncidentClass.HARD_BATCH, IncidentClass.RECOVERABLE, IncidentClass.PLATEAU})
"""Incidents that closed like this need nothing any more."""


@dataclass(slots=True, kw_only=True)
class RunView:
    """What the controller may ask about the run at a boundary."""

    step: int
    accumulate: int
    next_position: int
    """Data position of the next batch."""
    slots: tuple[int, ...]
    """The steps of the snapshots, oldest first."""
    settings: Callable[[], SettingsView]
    """The present settings."""
    settings_at: Callable[[], Sequence[SettingsView]]
    """The settings of each snapshot."""
    can_probe: bool


@dataclass(slots=True, kw_only=True)
class _Watched:
    """An incident that is looked at."""

    symptoms: tuple[str, ...] = ()
    look_at: int | None = 0
    """Steps since the alarm at which to decide next; None if it is left alone."""
    reading: float | None = None
    reading_waited: int = -1


@dataclass(slots=True, kw_only=True)
class _Canary:
    """Readings of a healthy run."""

    healthy: list[tuple[int, float]] = field(default_factory=list)
    """Step and reading."""
    last: int = 0
    """The boundary of the last one."""
    not_before: int = 0
    """Batches from before this step are not comparable: a change was planned."""


class Controller:
    """Decides, on the first rank."""

    def __init__(
        self,
        recorder: RunRecorder,
        config: LadderConfig,
        order: Callable[[Order], None],
        *,
        resumed_at: int | None = None,
    ) -> None:
        self._recorder = recorder
        self._config = config
        self._order = order
        self._resumed_at = resumed_at
        self._log = DecisionLog(recorder.run.decisions, config)
        self._history = RemedyHistory(config)
        self._watched: dict[int, _Watched] = {}
        self._canary = _Canary()
        self._planned_changes: list[int] = []
        self._boundary = 0
        self._then: Callable[[float, RunView], None] | None = None
        """What to do with the reading of the probe that is under way."""

    def planned_change(self, step: int) -> None:
        """The user has announced a change: settings and data may differ from here on."""
        self._planned_changes.append(step)
        self._canary = _Canary(last=self._boundary, not_before=step)

    def look(self, view: RunView) -> None:
        """Look at the run between two steps, and order what is to be done."""
        self._boundary += 1
        incidents = self._recorder.incidents
        if self._then is not None:  # a probe is under way
            return
        remedy = self._history.due(view.step)
        if remedy is not None:
            self._check(remedy, view)
            return
        is_watching = False
        for incident in incidents:
            watched = self._watched.setdefault(incident.number, _Watched())
            if self._is_over(incident, watched):
                continue
            is_watching = is_watching or watched.look_at is not None
            if self._is_due(incident, watched, view) and self._decide(incident, watched, view):
                return
        every = canary_every(self._config.canary_share)
        if not is_watching and every is not None and self._boundary - self._canary.last >= every:
            self._canary.last = self._boundary
            self._probe_as_canary(view)

    def on_reading(self, value: float | None, view: RunView) -> None:
        """A probe was carried out; None if a rank could not."""
        then, self._then = self._then, None
        if then is not None and value is not None:
            then(value, view)

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
        waited = view.step - found[0].step
        in_a_row, recently = evidence.count_bad(self._recorder.recent)
        is_bad = in_a_row == 3 or recently == 16
        return (watched.look_at is not None and waited >= watched.look_at) or is_bad

    def _decide(self, incident: Incident, watched: _Watched, view: RunView) -> bool:
        """Decide about an incident; whether anything was ordered."""
        records = self._recorder.recent
        oddity = evidence.oddity(records, incident.onset.step)
        if oddity.is_odd and not oddity.is_known:
            return False  # the next two records tell whether it was the batch
        situation = self._situation(incident, watched, view, is_odd=oddity.is_odd)
        decision = decide(situation, self._config)
        self._report(situation, decision)
        watched.look_at = decision.look_again
        if decision.act is Act.WAIT:
            return False
        if decision.act is Act.PROBE:
            self._probe(situation, watched, view)
        else:
            self._act(situation, decision, view)
            watched.look_at = None
        return True

    def _situation(
        self, incident: Incident, watched: _Watched, view: RunView, *, is_odd: bool
    ) -> Situation:
        found = evidence.alarms(incident)
        family = family_of(watched.symptoms)
        names = evidence.signals_of(found)
        deciding = [one for one in found if traits_of(one.symptom).family is family]
        records, onset = self._recorder.recent, incident.onset.step
        in_a_row, recently = evidence.count_bad(records)
        excess = evidence.loss_excess(records, onset)
        situation = Situation(
            incident=incident.number,
            step=view.step,
            onset=onset,
            waited=view.step - found[0].step,
            symptoms=watched.symptoms,
            signals=names,
            is_dated=all(one.detector in evidence.DATED_DETECTORS for one in deciding),
            batch_was_odd=is_odd,
            bad_in_a_row=in_a_row,
            bad_recently=recently,
            probe=watched.reading,
            probe_waited=watched.reading_waited,
            loss_excess=None if excess is None else excess[0],
            loss_noise=None if excess is None else excess[1],
            slope=evidence.slope(records, onset),
        )
        differences = self._differences(situation, view)
        confidence = max(finding.confidence for finding in found)
        certainty = confidence * certainty_of(
            has_fact=any(traits_of(one.symptom).is_fact for one in deciding),
            num_signals=len(names),
            has_difference=bool(differences),
        )
        return self._complete(
            dataclasses.replace(situation, differences=differences, certainty=certainty), view
        )

    def _complete(self, situation: Situation, view: RunView) -> Situation:
        """Add what does not depend on the incident: snapshots, what was tried, budgets."""
        tried = self._history.of(situation)
        rollbacks, skipped = self._history.spent(self._boundary)
        last = tried[-1] if tried else None
        return dataclasses.replace(
            situation,
            healthy=tuple(value for step, value in self._canary.healthy if step < situation.onset),
            can_probe=view.can_probe and bool(self._probe_steps(situation, view)),
            recurrences=len(tried),
            tried=tuple(remedy.act for remedy in tried),
            last_depth=0
            if last is None or last.target is None
            else max(last.situation.onset - last.target, 0),
            slots=view.slots,
            resumed_at=self._resumed_at,
            rollbacks=rollbacks,
            skipped=skipped,
            lr_reductions=self._history.num_lr_reductions,
            relaunches_left=self._config.max_relaunches,
        )

    def _differences(self, situation: Situation, view: RunView) -> tuple[SettingDifference, ...]:
        before = situation.onset - situation.margin
        return find_differences(
            [settings for settings in view.settings_at() if settings.step <= before],
            view.settings(),
            with_rate=situation.family is Family.RATE,
            planned_changes=self._planned_changes,
        )

    # Acts.

    def _act(self, situation: Situation, decision: Decision, view: RunView) -> None:
        chosen = decision.chosen
        for part in chosen.holds:
            self._recorder.event(
                "settings changed",
                view.step,
                {"name": part.name, "before": part.before, "after": part.after},
            )
        skip = self._positions(chosen.skip_from, view) if decision.act in SKIPPING else ()
        self._history.add(
            Remedy(
                situation=situation,
                act=decision.act,
                target=chosen.target,
                num_skipped=len(skip),
                boundary=self._boundary,
                check_at=check_step(
                    onset=situation.onset,
                    alarm=view.step - situation.waited,
                    config=self._config,
                ),
            )
        )
        hold_at = max((slot for slot in view.slots if slot < situation.onset), default=0)
        self._order(
            Order(
                to=chosen.target,
                skip=skip,
                hold=tuple(dict.fromkeys(_option(part.name) for part in chosen.holds)),
                hold_at=hold_at if decision.act is Act.HOLD else None,
                lowers_lr=decision.act is Act.LOWER_LR,
                exit_code=decision.exit_code,
                reason=decision.reason,
            )
        )

    def _positions(self, first_step: int | None, view: RunView) -> tuple[int, ...]:
        """The data positions from a step up to the present one."""
        starts = [
            record.data_position
            for record in self._recorder.recent
            if first_step is not None and record.step >= first_step and record.data_position >= 0
        ]
        return tuple(range(min(starts), view.next_position)) if starts else ()

    # Probes.

    def _probe_steps(self, situation: Situation, view: RunView) -> list[Record]:
        first = max(self._canary.not_before, view.slots[0] if view.slots else 0)
        before = situation.onset - situation.margin + 1
        return evidence.probe_steps(self._recorder.recent, before, PROBE_BATCHES, not_before=first)

    def _probe(self, situation: Situation, watched: _Watched, view: RunView) -> None:
        def then(value: float, now: RunView) -> None:
            watched.reading, watched.reading_waited = value, situation.waited
            watched.look_at = 0
            self.look(now)

        self._order_probe(self._probe_steps(situation, view), view, then, "incident")

    def _order_probe(
        self,
        records: Sequence[Record],
        view: RunView,
        then: Callable[[float, RunView], None],
        purpose: str,
    ) -> None:
        def journalled(value: float, now: RunView) -> None:
            facts = {"value": value, "batches": len(records), "purpose": purpose}
            self._recorder.event("probe", now.step, facts)
            then(value, now)

        self._then = journalled
        steps = [
            ProbeStep(
                step=record.step,
                trained=record.signals["loss"],
                positions=tuple(
                    range(record.data_position, record.data_position + view.accumulate)
                ),
            )
            for record in records
        ]
        self._order(Order(to=None, probe=tuple(steps)))

    def _check(self, remedy: Remedy, view: RunView) -> None:
        """Has a remedy helped? One probe, where it can be made."""
        remedy.is_checked = True
        situation = remedy.situation
        records = self._probe_steps(situation, view)
        if not (view.can_probe and records):
            self._recorder.event("check", view.step, {"act": remedy.act.value, "helped": None})
            return

        def then(value: float, now: RunView) -> None:
            reading = self._reading(value)
            facts = {"act": remedy.act.value, "helped": reading.is_healthy, "value": value}
            self._recorder.event("check", now.step, facts)
            log.info(
                "trimtab: %s of step %d %s (probe %+.3f nat)",
                remedy.act.value,
                situation.onset,
                "has helped" if reading.is_healthy else "has not helped",
                value,
            )
            if not reading.is_healthy:
                again = dataclasses.replace(
                    situation, step=now.step, probe=value, probe_waited=situation.waited
                )
                self._decide_by_reading(self._complete(again, now), now)

        self._order_probe(records, view, then, "check")

    def _probe_as_canary(self, view: RunView) -> None:
        if not view.can_probe:
            return
        first = max(self._canary.not_before, view.slots[0] if view.slots else 0)
        records = evidence.probe_steps(
            self._recorder.recent, view.step - CANARY_AGE, CANARY_STEPS, not_before=first
        )
        if not records:
            return

        def then(value: float, now: RunView) -> None:
            if self._reading(value).is_healthy or len(self._canary.healthy) < 3:
                self._canary.healthy.append((now.step, value))
                del self._canary.healthy[:-32]
            else:
                self._confirm(now)

        self._order_probe(records, view, then, "canary")

    def _confirm(self, view: RunView) -> None:
        """The canary reads too high: probe with more batches, from before its last good reading."""
        last = self._canary.healthy[-1][0]
        unknown = Situation(step=view.step, onset=last, waited=view.step - last, certainty=0.95)
        records = self._probe_steps(unknown, view)
        if not records:
            return

        def then(value: float, now: RunView) -> None:
            situation = dataclasses.replace(
                unknown,
                step=now.step,
                probe=value,
                probe_waited=now.step - last,
                slope=evidence.slope(self._recorder.recent, last),
            )
            if not self._reading(value).is_healthy:
                self._decide_by_reading(self._complete(situation, now), now)

        self._order_probe(records, view, then, "canary, confirmed")

    def _decide_by_reading(self, situation: Situation, view: RunView) -> None:
        """Decide where a probe and no detector has found something."""
        decision = decide(situation, self._config)
        self._report(situation, decision)
        if decision.act not in (Act.WAIT, Act.PROBE):
            self._act(situation, decision, view)

    def _reading(self, value: float) -> Reading:
        mean, sigma = scale_of([reading for _, reading in self._canary.healthy])
        return Reading(value=value, mean=mean, sigma=sigma)

    def _report(self, situation: Situation, decision: Decision) -> None:
        self._log.append(situation, decision)
        chosen = decision.chosen
        self._recorder.event(
            "decision",
            situation.step,
            {
                "incident": situation.incident,
                "act": decision.act.value,
                "cost": chosen.cost if math.isfinite(chosen.cost) else None,
                "reason": decision.reason,
            },
        )
        if decision.act not in (Act.WAIT, Act.PROBE):
            log.warning("trimtab: decision: %s: %s", decision.act.value, decision.reason)


def _option(name: str) -> str:
    """The option of an optimizer that a difference is about."""
    return "requires_grad" if name.startswith("requires_grad") else name.rpartition(" ")[2]
