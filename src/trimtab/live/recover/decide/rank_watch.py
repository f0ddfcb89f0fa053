"""RankWatch: finds the rank that computes wrongly, on the first rank.

odd gradients recur --> all ranks measure their own gradients for some steps
                    --> the rank that nearly all odd steps name is suspected
"""

from collections.abc import Callable, Sequence

from trimtab.core import signals
from trimtab.core.block import Record
from trimtab.core.findings import Symptom
from trimtab.decide.costs import FACT
from trimtab.decide.situation import Situation
from trimtab.decide.suspects import suspect_rank
from trimtab.live.recover.decide import evidence
from trimtab.live.recover.decide.run_view import RunView
from trimtab.live.recover.order import Order
from trimtab.live.shield import log

RECENT_STEPS, MIN_ODD = 100, 3
"""Odd steps among the last ones before the ranks are looked at. Chosen: a run with single hard
batches has fewer."""

WATCH_STEPS = 100
"""Steps for which ranks measure their own gradients: one sweep over them each."""


class RankWatch:
    """Orders ranks to be looked at, and names one."""

    def __init__(self, order: Callable[[Order], None]) -> None:
        self._order = order
        self._until: int | None = None
        """The boundary at which looking ends."""
        self._looked_at = 0
        self.suspect: int | None = None
        """The rank that computes wrongly."""

    def look(self, records: Sequence[Record], view: RunView, boundary: int) -> Situation | None:
        """At a boundary: what to decide upon, if a rank was named just now."""
        if view.world == 1 or not records or self.suspect is not None:
            return None
        recent = [record for record in records if record.step > view.step - RECENT_STEPS]
        if self._until is None:
            is_new = boundary - self._looked_at >= WATCH_STEPS or not self._looked_at
            if is_new and len(evidence.odd_gradients(recent, records)) >= MIN_ODD:
                self._until = boundary + WATCH_STEPS
                self._order(Order(to=None, watch_ranks=True))
                log.info("trimtab: odd gradients recur, so the ranks are compared")
            return None
        odd = evidence.odd_gradients(recent, records)
        named = [
            int(record.signals[signals.MAX_GRAD_RANK])
            for record in odd
            if record.signals.get(signals.MAX_RANK_GRAD, -1.0) >= 0
        ]
        named += evidence.odd_ranks(recent, records)
        self.suspect = suspect_rank(named, view.world)
        if self.suspect is None and boundary < self._until:
            return None
        self._until, self._looked_at = None, boundary
        self._order(Order(to=None, watch_ranks=False))
        if self.suspect is None:
            return None
        onset = odd[0].step if odd else view.step
        return Situation(
            step=view.step,
            onset=onset,
            waited=view.step - onset,
            symptoms=(Symptom.GRADIENT_SPIKE,),
            signals=(signals.GRAD_NORM,),
            certainty=FACT,
        )
