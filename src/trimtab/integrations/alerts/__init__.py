"""Alerts: messages to people about a run.

    journal -> AlertSink (in the shipper) ---------.
                                                   +--> AlertPolicy --> Channel --> people
    on_incident -> IncidentAlerts (in training) ---'    which, when     how, where

alert.py          Alert: what a message says
from_events.py    the alerts of incidents, actions, proposals, a stalled or dead run
discards.py       ten discarded steps in a row
policy.py         at most one message per incident and 10 minutes, a digest when many open at once
channels.py       the addresses of `TRIMTAB_ALERT_URLS`
outbox.py         what one channel has not sent yet
formats.py        the body for each service, as pure functions
http_channel.py   webhook, Slack, Discord, ntfy, PagerDuty
mail_channel.py   e-mail
local_channels.py a command; apprise
alert_sink.py     the sink `alerts`
on_incident.py    alerts from the training process itself, by `on_incident`
"""

from trimtab.integrations.alerts.on_incident import IncidentAlerts, wandb_alerts

__all__ = ["IncidentAlerts", "wandb_alerts"]
