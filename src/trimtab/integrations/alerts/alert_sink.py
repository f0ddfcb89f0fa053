"""The sink `alerts`: which alerts are sent, and when."""

import dataclasses
import logging
import time
from typing import Any

from trimtab.core.block import Block
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.alerts.alert import Alert, AlertLevel, AlertState, RunAlerts
from trimtab.integrations.alerts.channels import Outbox, read_channels

REPEAT_SECONDS = 600.0
"""From one message about a matter to the next, unless it got worse or is over. Source: the shortest
time in which a person on call can look at a run and answer."""

DIGEST_COUNT, DIGEST_SECONDS = 5, 60.0
"""More matters than this opened within this many seconds are one message. Source: a run whose
weights are destroyed opens an incident every few steps."""

log = logging.getLogger("trimtab.ship")


class AlertPolicy:
    """Decides alert by alert what is sent: too many messages in an hour are not read.

    Its state is plain JSON that is kept up to date in place, so that a restart repeats nothing.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._open: dict[str, dict[str, Any]] = state.setdefault("open", {})
        """By key: the level and the time of its last message; `is_sent` is False if none was."""
        self._opened: list[float] = state.setdefault("opened", [])
        self._held: list[str] = state.setdefault("held", [])
        """Headlines that wait for the digest."""

    def update(self, alert: Alert, now: float) -> list[Alert]:
        """Return the messages to send for an alert."""
        if alert.state is AlertState.CLOSED:
            # The end of what was only in a digest, or never reported, is no message.
            known = self._open.pop(alert.key, None)
            return [alert] if known is not None and known["is_sent"] else []
        known = self._open.get(alert.key)
        if known is None:
            return self._first(alert, now)
        is_worse = alert.level.rank > AlertLevel(known["level"]).rank
        is_due = now - known["time"] >= REPEAT_SECONDS
        if not is_worse and not (is_due and alert.state is AlertState.CHANGED):
            return []
        known |= {"level": alert.level.value, "time": now, "is_sent": True}
        return [dataclasses.replace(alert, state=AlertState.CHANGED)]

    def digest(self, run: str, now: float, *, is_last: bool = False) -> list[Alert]:
        """Return the message about everything that was held back, once its time has come."""
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
                level=AlertLevel.ERROR,
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


class AlertSink:
    """The sink `alerts`: turns events into alerts and sends those that people should read."""

    name = "alerts"
    needs_everything = False

    def __init__(self) -> None:
        self._channels = read_channels()

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Continue with what was open, and with what was not sent."""
        self._run, self._memory = run, memory
        link = str(run.manifest.get("link") or "")
        self._alerts = RunAlerts(run.name, link, memory.values.setdefault("discards", {}))
        self._policy = AlertPolicy(memory.values.setdefault("policy", {}))
        waiting: dict[str, list[dict[str, Any]]] = memory.values.setdefault("waiting", {})
        self._outboxes = [
            Outbox(channel, waiting.setdefault(channel.name, []), log.warning)
            for channel in self._channels
        ]

    def send(self, block: Block) -> None:
        """Alert about the events; of the records only the steps matter."""
        now = time.time()
        alerts = [alert for event in block.events for alert in self._alerts.from_event(event)]
        for alert in [*alerts, *self._alerts.from_records(block)]:
            self._queue(self._policy.update(alert, now))
        self.poll()

    def poll(self) -> None:
        """Send what is due: a digest, or a message that could not be sent before."""
        self._queue(self._policy.digest(self._run.name, time.time()))
        # Saved before and after: a message is sent twice only if the shipper dies between the two.
        has_changed = False
        for outbox in self._outboxes:
            has_changed |= outbox.flush()
        if has_changed:
            self._memory.save()

    def finish(self, status: RunStatus) -> None:
        """Send what still waits; raises if that is not possible yet."""
        self._queue(self._policy.digest(self._run.name, time.time(), is_last=True))
        for outbox in self._outboxes:
            outbox.flush(is_last=True)
        if not all(outbox.is_empty for outbox in self._outboxes):
            raise ConnectionError("some messages could not be sent yet")

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _queue(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            for outbox in self._outboxes:
                outbox.add(alert)
        if alerts:
            self._memory.save()
