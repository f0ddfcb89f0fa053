"""Webhook, Slack, Discord, ntfy and PagerDuty: one POST with a hard deadline."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from trimtab.core.errors import ConfigError
from trimtab.integrations.alerts import formats
from trimtab.integrations.alerts.alert import Alert
from trimtab.integrations.transport.http import post_json

PAGERDUTY = "events.pagerduty.com"
"""Of tenants in the EU it is events.eu.pagerduty.com: `pagerduty://KEY@events.eu.pagerduty.com`."""


class HttpChannel:
    """Posts the body that a format makes of an alert."""

    def __init__(self, kind: str, url: str, body: Callable[[Alert], dict[str, Any]]) -> None:
        self.kind = kind
        self._url = url
        self._body = body

    def send(self, alert: Alert, seconds: float) -> None:
        """Send; raises unless it was accepted."""
        post_json(self._url, self._body(alert), seconds).require_success()


def plain_channel(kind: str, url: str) -> HttpChannel:
    """The channel of `slack+https://...`, `discord+https://...` or `webhook+https://...`."""
    bodies = {"webhook": formats.webhook, "slack": formats.slack, "discord": formats.discord}
    return HttpChannel(kind, url, bodies[kind])


def ntfy_channel(url: str) -> HttpChannel:
    """The channel of `ntfy+https://server/topic`."""
    server, _, topic = url.rstrip("/").rpartition("/")
    if not topic or not urlsplit(server).netloc:
        raise ConfigError("an ntfy address is ntfy+https://SERVER/TOPIC")
    return HttpChannel("ntfy", server, lambda alert: formats.ntfy(alert, topic))


def pagerduty_channel(address: str) -> HttpChannel:
    """The channel of `pagerduty://KEY`, `pagerduty://KEY@HOST` or `pagerduty+http://KEY@HOST`."""
    scheme, _, rest = address.partition("://")
    key, _, host = rest.strip("/").partition("@")
    if not key:
        raise ConfigError("a PagerDuty address is pagerduty://INTEGRATION_KEY")
    protocol = "http" if scheme == "pagerduty+http" else "https"
    url = f"{protocol}://{host or PAGERDUTY}/v2/enqueue"
    return HttpChannel("pagerduty", url, lambda alert: formats.pagerduty(alert, key))
