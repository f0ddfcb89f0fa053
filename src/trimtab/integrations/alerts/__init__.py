"""Alerts: messages to people about a run.

    journal -> AlertSink (in the shipper) --> AlertPolicy --> Channel --> people
                                              which, when     how, where

alert.py        Alert, and the alerts of incidents, discarded steps, actions, a stalled or dead run
alert_sink.py   at most one message per incident and 10 minutes, a digest when many open at once;
                the sink `alerts`
channels.py     webhook, apprise, and what one of them has not sent yet
"""
