"""The sink `alerts`: messages to people, from the shipper."""

import logging
import time
from typing import Any

from trimtab.core.block import Block, Event
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.alerts.alert import Alert
from trimtab.integrations.alerts.channels import read_channels
from trimtab.integrations.alerts.discards import DiscardRow
from trimtab.integrations.alerts.from_events import event_alert, incident_alert, status_alerts
from trimtab.integrations.alerts.outbox import Outbox
from trimtab.integrations.alerts.policy import AlertPolicy
from trimtab.integrations.sinks.incident_events import IncidentNews

log = logging.getLogger("trimtab.ship")


class AlertSink:
    """Turns events into alerts and sends those that people should see."""

    name = "alerts"
    needs_everything = False

    def __init__(self) -> None:
        self._channels = read_channels()

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Continue with what was open, and with what was not sent."""
        self._run, self._memory = run, memory
        self._policy = AlertPolicy(memory.values.setdefault("policy", {}))
        self._link = str(run.manifest.get("link") or "")
        row = memory.values.setdefault("discards", {})
        self._discards = DiscardRow(row, run.name, self._link)
        waiting: dict[str, list[dict[str, Any]]] = memory.values.setdefault("waiting", {})
        self._outboxes = [
            Outbox(channel, waiting.setdefault(f"{place} {channel.kind}", []), log.warning)
            for place, channel in enumerate(self._channels, 1)
        ]

    def send(self, block: Block) -> None:
        """Alert about the events; of the records only the steps are looked at."""
        now = time.time()
        alerts = [alert for event in block.events for alert in self._alerts(event)]
        for alert in [*alerts, *self._discards.end_of(block)]:
            self._put(self._policy.update(alert, now))
        self.poll()

    def poll(self) -> None:
        """Send what is due: a digest, or a message that could not be sent before."""
        self._put(self._policy.digest(self._run.name, time.time()))
        # Saved before and after: a message is sent twice only if the shipper dies between the two.
        has_changed = False
        for outbox in self._outboxes:
            has_changed |= outbox.flush()
        if has_changed:
            self._memory.save()

    def finish(self, status: RunStatus) -> None:
        """Send what still waits; raises if that is not possible yet."""
        self._put(self._policy.digest(self._run.name, time.time(), is_last=True))
        for outbox in self._outboxes:
            outbox.flush(is_last=True)
        if not all(outbox.is_empty for outbox in self._outboxes):
            raise ConnectionError("some messages could not be sent yet")

    def close(self) -> None:
        """Nothing stays open."""

    def _alerts(self, event: Event) -> list[Alert]:
        run, link = self._run.name, self._link
        found = [*status_alerts(run, event, link), *self._discards.update(event)]
        news = IncidentNews.from_event(event)
        one = event_alert(run, event, link) if news is None else incident_alert(run, news, link)
        return [*found, *([one] if one is not None else [])]

    def _put(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            for outbox in self._outboxes:
                outbox.add(alert)
        if alerts:
            self._memory.save()
