"""DiscardRow: a run whose steps are all discarded does not train any more."""

import time
from typing import Any

from trimtab.core.block import Block, Event
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.integrations.alerts.alert import Alert, AlertState, Level

DISCARDED = "step discarded"
"""The event of a step that the gate kept from the weights."""

ALERT_AFTER = 10
"""Discarded steps in a row. Source: a bad batch is one step, and a protected run ends by itself
only after 100 (`live.max_nonfinite_steps`)."""


class DiscardRow:
    """Counts discarded steps in a row; its state is plain JSON, as that of the policy."""

    def __init__(self, state: dict[str, Any], run: str, link: str = "") -> None:
        """Continue from a state that is kept up to date in place."""
        self._run, self._link = run, link
        self._state = state
        state.setdefault("count", 0)
        state.setdefault("last", -1)

    def update(self, event: Event) -> list[Alert]:
        """The alerts of an event of the journal."""
        if event.kind == ROLLBACK:
            return self._end(event.step)
        if event.kind != DISCARDED:
            return []
        state = self._state
        found = [] if event.step == state["last"] + 1 else self._end(event.step)
        state |= {"count": state["count"] + 1, "last": event.step}
        if state["count"] == ALERT_AFTER:
            reasons = " and ".join(map(str, event.facts.get("reasons", ())))
            title = f"{ALERT_AFTER} steps in a row were discarded: the run does not train any more"
            found.append(self._alert(AlertState.OPEN, Level.ERROR, title, event.step, reasons))
        return found

    def end_of(self, block: Block) -> list[Alert]:
        """The alert of records: a later step was applied. The event of a step follows its record,
        so the next one may still be discarded."""
        if len(block) and int(block.step[-1]) > self._state["last"] + 1:
            return self._end(int(block.step[-1]))
        return []

    def _end(self, step: int) -> list[Alert]:
        was_reported = self._state["count"] >= ALERT_AFTER
        self._state["count"] = 0
        if not was_reported:
            return []
        return [self._alert(AlertState.CLOSED, Level.INFO, "steps are applied again", step)]

    def _alert(
        self, state: AlertState, level: Level, title: str, step: int, text: str = ""
    ) -> Alert:
        return Alert(
            run=self._run,
            matter="discards",
            state=state,
            level=level,
            title=title,
            text=text,
            step=step,
            clock=time.time(),
            link=self._link,
        )
