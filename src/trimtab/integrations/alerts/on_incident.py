"""Alerts from the training process itself: `watch(..., on_incident=IncidentAlerts(run="x1"))`.

`on_incident` runs in a thread of its own, and each message has a hard deadline, so training never
waits. The shipper (`ship=["alerts"]`) can do more: it also reports a run that died or stalled.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from trimtab.core.incidents import Incident
from trimtab.integrations.alerts.alert import Alert, Level
from trimtab.integrations.alerts.channels import SEND_SECONDS, read_channels
from trimtab.integrations.alerts.from_events import incident_alert
from trimtab.integrations.alerts.policy import AlertPolicy
from trimtab.integrations.sinks.incident_events import IncidentNews
from trimtab.integrations.transport.secrets import SECRETS

log = logging.getLogger("trimtab")

WANDB_TITLE_CHARS = 64


class IncidentAlerts:
    """Sends the incidents of a run to the addresses in `TRIMTAB_ALERT_URLS`."""

    def __init__(self, run: str, link: str = "") -> None:
        """Read the addresses; raises ConfigError if there are none."""
        self._run, self._link = run, link
        self._channels = read_channels()
        self._policy = AlertPolicy({})
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, incident: Incident) -> None:
        """Send what people should see; a failure is logged once per service."""
        alert = incident_alert(self._run, IncidentNews.from_incident(incident), self._link)
        if alert is None:
            return
        with self._lock:
            now = time.time()
            messages = [*self._policy.update(alert, now), *self._policy.digest(self._run, now)]
            for message in messages:
                self._send(message)

    def _send(self, message: Alert) -> None:
        for channel in self._channels:
            try:
                channel.send(message, SEND_SECONDS)
            except Exception as error:
                if channel.kind not in self._failed:
                    self._failed.add(channel.kind)
                    log.warning(
                        "trimtab: %s cannot be reached: %s", channel.kind, SECRETS.describe(error)
                    )


def wandb_alerts(wandb_run: Any) -> Callable[[Incident], None]:
    """Incidents as alerts of your own W&B run: `on_incident=wandb_alerts(wandb.run)`.

    Only alerts: metrics of a second writer would cost you points of your own.
    """
    levels = {Level.INFO: "INFO", Level.WARNING: "WARN", Level.ERROR: "ERROR"}
    policy = AlertPolicy({})

    def send(incident: Incident) -> None:
        news = IncidentNews.from_incident(incident)
        alert = incident_alert(str(wandb_run.name or "run"), news)
        if alert is None:
            return
        for message in policy.update(alert, time.time()):
            wandb_run.alert(
                title=message.title[:WANDB_TITLE_CHARS],
                text=f"{message.title}\n{message.text}",
                level=levels[message.level],
            )

    return send
