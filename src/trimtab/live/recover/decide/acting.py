"""Acting: a decision becomes an order, a remedy to be checked, and events of the journal."""

import dataclasses
from collections.abc import Callable

from trimtab.core.findings import Symptom
from trimtab.decide.ladder import check_step
from trimtab.decide.situation import SKIPPING, Act, Decision, Situation
from trimtab.decide.suspects import JUMP, RATE
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.decide import evidence
from trimtab.live.recover.decide.remedies import Remedy, RemedyHistory
from trimtab.live.recover.decide.run_view import RunView
from trimtab.live.recover.experiments.questions import remedy_question
from trimtab.live.recover.order import Order
from trimtab.live.shield import log

LR_FACTOR = 0.5
"""Of a learning rate that is lowered. Source: textbook, "2 to 3x"; the smaller change."""

ORDER_BOUNDARIES = 16
"""Boundaries after which an order that is not carried out was refused. Source: an order reaches all
ranks one step and the lag after it was given."""


class Acting:
    """Gives the orders that decisions ask for."""

    def __init__(
        self,
        recorder: RunRecorder,
        history: RemedyHistory,
        order: Callable[[Order], None],
    ) -> None:
        self._recorder = recorder
        self._history = history
        self._order = order
        self.verifies = False
        """Whether a rollback is tried on a state that is thrown away before it is carried out."""
        self._rate_limit, self._release_from = 1.0, 0
        """A rate that is held is released when the planned one is at most this many times it, but
        not before this step: what goes by the step comes again first."""

    def act(self, situation: Situation, decision: Decision, view: RunView, boundary: int) -> None:
        """Order what was decided."""
        chosen = decision.chosen
        for part in chosen.holds:
            facts = {"name": part.name, "before": part.before, "after": part.after}
            self._recorder.event("settings changed", view.step, facts)
        skip: tuple[int, ...] = ()
        if decision.act in SKIPPING and chosen.skip_from is not None:
            skip = evidence.positions_since(
                self._recorder.recent, chosen.skip_from, view.next_position
            )
        source = situation.source if decision.act is Act.QUARANTINE else None
        if source is not None:  # the others of these batches did no harm
            skip = tuple(position for position in skip if view.source_at(position) == source)
        remedy = Remedy(
            situation=situation,
            act=decision.act,
            target=chosen.target,
            num_skipped=len(skip),
            boundary=boundary,
            check_at=check_step(
                onset=situation.onset,
                alarm=view.step - situation.waited,
            ),
        )
        self._history.add(remedy)
        # A jump is over when the rate is near to what it was; a slow rise when it is back.
        self._rate_limit = 1.0 if Symptom.LR_RISING in situation.symptoms else JUMP
        self._release_from = remedy.check_at
        held_at = [part.step for part in chosen.holds if part.step is not None]
        order = Order(
            to=chosen.target,
            skip=skip,
            quarantine=source,
            hold=tuple(dict.fromkeys(part.option for part in chosen.holds)),
            hold_at=max(held_at, default=None) if decision.act is Act.HOLD else None,
            lr_factor=LR_FACTOR if decision.act is Act.LOWER_LR else None,
            exit_code=decision.exit_code,
            reason=decision.reason,
        )
        if self.verifies and decision.is_rollback:
            tried = remedy_question(self._recorder.recent, decision.act.value, situation, order)
            order = dataclasses.replace(order, experiment=tried)
        self._order(order)

    def release_rate(self, view: RunView) -> None:
        """Hold the rate no longer once the plan is back."""
        ratio = view.rate_ratio() if view.step >= self._release_from else None
        if ratio is None or ratio > self._rate_limit:
            return
        reason = "the planned learning rate is back"
        self._release_from = view.step + ORDER_BOUNDARIES  # it may be on its way to the ranks
        self._recorder.event("released", view.step, {"name": RATE, "reason": reason})
        log.warning("trimtab: %s is held no longer: %s", RATE, reason)
        self._order(Order(to=None, release=(RATE,), reason=reason))
