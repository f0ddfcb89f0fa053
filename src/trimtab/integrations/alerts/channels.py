"""The addresses of `TRIMTAB_ALERT_URLS`, separated by white space.

    webhook+https://host/path      everything as JSON
    slack+https://hooks.slack...   Slack, Mattermost
    discord+https://discord.com/api/webhooks/...
    ntfy+https://ntfy.sh/topic
    pagerduty://INTEGRATION_KEY
    smtp://host/?from=a@x&to=b@x   also smtps://
    command:/path/to/program       no shell; the webhook's JSON as its input
    apprise:URL                    any service of apprise (pip install 'trimtab[apprise]')

An address is a password, so it comes from the environment only, and is in no file, log or error.
"""

import os
from collections.abc import Mapping
from typing import Protocol

from trimtab.core.errors import ConfigError
from trimtab.integrations.alerts.alert import Alert
from trimtab.integrations.alerts.http_channel import (
    ntfy_channel,
    pagerduty_channel,
    plain_channel,
)
from trimtab.integrations.alerts.local_channels import AppriseChannel, CommandChannel
from trimtab.integrations.alerts.mail_channel import MailChannel
from trimtab.integrations.transport.secrets import SECRETS

VARIABLE = "TRIMTAB_ALERT_URLS"

SEND_SECONDS = 10.0
"""The hard deadline of one message. Source: chat services answer within a second or two."""


class Channel(Protocol):
    """One way to reach people."""

    @property
    def kind(self) -> str:
        """The service, for messages about the channel."""
        ...

    def send(self, alert: Alert, seconds: float) -> None:
        """Send within this time; raises unless it was accepted."""
        ...


def read_channels(environment: Mapping[str, str] = os.environ) -> list[Channel]:
    """The channels that the environment names; raises ConfigError."""
    addresses = environment.get(VARIABLE, "").split()
    if not addresses:
        raise ConfigError(
            f"alerts need addresses in the environment variable {VARIABLE}, such as "
            "slack+https://... or ntfy+https://..."
        )
    return [_channel(address, place) for place, address in enumerate(addresses, 1)]


def _channel(address: str, place: int) -> Channel:
    SECRETS.add(address)
    scheme, _, rest = address.partition(":")
    kind, _, protocol = scheme.partition("+")
    url = f"{protocol}:{rest}"
    SECRETS.add(url if protocol else rest)
    is_web = protocol in ("http", "https")
    if kind in ("webhook", "slack", "discord") and is_web:
        return plain_channel(kind, url)
    if kind == "ntfy" and is_web:
        return ntfy_channel(url)
    if kind == "pagerduty":
        return pagerduty_channel(address)
    if scheme in ("smtp", "smtps"):
        return MailChannel(address)
    if scheme == "command":
        return CommandChannel(rest)
    if scheme == "apprise":
        return AppriseChannel(rest)
    raise ConfigError(
        f"address {place} of {VARIABLE} has no known beginning; known: webhook+https, slack+https, "
        "discord+https, ntfy+https, pagerduty, smtp, smtps, command, apprise"
    )
