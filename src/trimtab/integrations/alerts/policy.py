"""AlertPolicy: which messages are sent, and when: too many in an hour are not read."""

import dataclasses
from typing import Any

from trimtab.integrations.alerts.alert import Alert, AlertState, Level

REPEAT_SECONDS = 600.0
"""From one message about a matter to the next, unless it got worse or is over. Source: the shortest
time in which a person on call can look at a run and answer."""

DIGEST_COUNT, DIGEST_SECONDS = 5, 60.0
"""More matters than this opened within this many seconds are one message. Source: a run whose
weights are destroyed opens an incident every few steps."""


class AlertPolicy:
    """Decides message by message; its state is plain JSON, so that a restart repeats nothing."""

    def __init__(self, state: dict[str, Any]) -> None:
        """Continue from a state that is kept up to date in place."""
        self._open: dict[str, dict[str, Any]] = state.setdefault("open", {})
        """By key: the level and the time of its last message; `is_sent` is False if none was."""
        self._opened: list[float] = state.setdefault("opened", [])
        self._held: list[str] = state.setdefault("held", [])
        """Headlines that wait for the digest."""

    def update(self, alert: Alert, now: float) -> list[Alert]:
        """The messages to send for an alert."""
        if alert.state is AlertState.CLOSED:
            return self._close(alert)
        known = self._open.get(alert.key)
        if known is None:
            return self._first(alert, now)
        is_worse = alert.level.rank > Level(known["level"]).rank
        is_due = now - known["time"] >= REPEAT_SECONDS
        if not is_worse and not (is_due and alert.state is AlertState.CHANGED):
            return []
        known |= {"level": alert.level.value, "time": now, "is_sent": True}
        return [dataclasses.replace(alert, state=AlertState.CHANGED)]

    def digest(self, run: str, now: float, *, is_last: bool = False) -> list[Alert]:
        """The message about everything that was held back, once its time has come."""
        if not self._held:
            return []
        if not is_last and self._opened and now - self._opened[-1] < DIGEST_SECONDS:
            return []
        held = list(self._held)
        self._held.clear()
        return [
            Alert(
                run=run,
                matter=f"digest-{round(now)}",
                state=AlertState.OPEN,
                level=Level.ERROR,
                title=f"{len(held)} more incidents opened in a short time",
                text="\n".join(held[:20]),
                clock=now,
            )
        ]

    def _first(self, alert: Alert, now: float) -> list[Alert]:
        self._opened[:] = [time for time in self._opened if now - time < DIGEST_SECONDS] + [now]
        is_sent = len(self._opened) <= DIGEST_COUNT
        self._open[alert.key] = {"level": alert.level.value, "time": now, "is_sent": is_sent}
        if is_sent:
            return [dataclasses.replace(alert, state=AlertState.OPEN)]
        self._held.append(alert.title)
        return []

    def _close(self, alert: Alert) -> list[Alert]:
        """Report the end of what was reported; a closed digest entry says nothing."""
        known = self._open.pop(alert.key, None)
        return [alert] if known is not None and known["is_sent"] else []
