"""Alerts: messages to people about a run.

    journal -> AlertSink (in the shipper) --> AlertPolicy --> Channel --> people
                                              which, when     how, where

alert.py        Alert, and the alerts of incidents, discarded steps, actions, a stalled or dead run
alert_sink.py   at most one message per incident and 10 minutes, a digest when many open at once;
                the sink `alerts`, and alerts in your own W&B run
channels.py     webhook, apprise, and what one of them has not sent yet
"""

from trimtab.integrations.alerts.alert_sink import wandb_alerts

__all__ = ["wandb_alerts"]
