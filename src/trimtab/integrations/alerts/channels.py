"""Channels: how alerts reach people, by the addresses in `TRIMTAB_ALERT_URLS`.

    webhook+https://host/path   the alert as JSON, to a program of yours
    apprise:URL                 Slack, Discord, ntfy, PagerDuty, e-mail and every other service of
                                apprise, by its own URL (the extra `apprise`)

Addresses are separated by white space. An address is a password, so it comes from the environment
only, and is in no file, log or error.
"""

import dataclasses
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.core.errors import ConfigError, MissingExtra
from trimtab.core.sink import Refused
from trimtab.integrations.alerts.alert import Alert, AlertLevel, AlertState
from trimtab.observe.shipping.transport import SECRETS, call_within, post_json

VARIABLE = "TRIMTAB_ALERT_URLS"

SEND_SECONDS = 10.0
"""The hard deadline of one message. Source: chat services answer within a second or two."""

FIRST_WAIT, MAX_WAIT = 2.0, 60.0
"""Seconds before a message is tried again: doubled from the first to the longest."""

MAX_AGE = 3600.0
"""Seconds after which a message that could not be sent is dropped: people know by other ways."""

MAX_MESSAGES = 50
"""Messages that wait for one channel; the oldest is dropped."""


def read_channels(environment: Mapping[str, str] = os.environ) -> list["Channel"]:
    """Return the channels that the environment names; raises ConfigError."""
    addresses = environment.get(VARIABLE, "").split()
    if not addresses:
        raise ConfigError(
            f"alerts need addresses in the environment variable {VARIABLE}, such as "
            "webhook+https://host/path or apprise:https://hooks.slack.com/services/..."
        )
    return [_channel(address, place) for place, address in enumerate(addresses, 1)]


def _channel(address: str, place: int) -> "Channel":
    SECRETS.add(address)
    scheme, _, rest = address.partition(":")
    kind, _, protocol = scheme.partition("+")
    url = f"{protocol}:{rest}"
    SECRETS.add(url if protocol else rest)
    if kind == "webhook" and protocol in ("http", "https"):
        return WebhookChannel(f"webhook (address {place})", url)
    if scheme == "apprise":
        return AppriseChannel(f"apprise (address {place})", rest)
    raise ConfigError(
        f"address {place} of {VARIABLE} has no known beginning; known: webhook+https:, "
        "apprise: (Slack, mail and others; docs/trackers.md)"
    )


class WebhookChannel:
    """Posts each alert as JSON."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._url = url

    def send(self, alert: Alert, seconds: float) -> None:
        post_json(self._url, alert.to_dict(), seconds).require_success()


class AppriseChannel:
    """Sends to any service of apprise: `apprise:` and its own URL."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        try:
            import apprise
        except ImportError as error:
            raise MissingExtra.of(
                "addresses that start with apprise: need it", "apprise"
            ) from error
        logging.getLogger("apprise").addFilter(_APPRISE_LOG)
        self._types: Any = {
            AlertLevel.INFO: apprise.NotifyType.INFO,
            AlertLevel.WARNING: apprise.NotifyType.WARNING,
            AlertLevel.ERROR: apprise.NotifyType.FAILURE,
        }
        self._client: Any = apprise.Apprise()
        if not self._client.add(url):
            raise ConfigError("apprise does not know the service of an address")

    def send(self, alert: Alert, seconds: float) -> None:
        """Send; raises unless the service accepted it."""
        _APPRISE_LOG.reason = ""
        body = "\n".join(part for part in (alert.text or alert.title, alert.link) if part)
        is_sent = call_within(
            seconds,
            lambda connections: self._client.notify(
                title=_without_mentions(alert.headline),
                body=_without_mentions(body),
                notify_type=self._types[alert.level],
            ),
        )
        if not is_sent:
            reason = _APPRISE_LOG.reason
            raise ConnectionError("apprise could not send it" + (f": {reason}" if reason else ""))


Channel = WebhookChannel | AppriseChannel
"""One way to reach people; `send` raises unless the alert was accepted in time."""


class _AppriseLog(logging.Filter):
    """Hides secrets in what apprise logs, and keeps its last warning.

    apprise repeats keys of a wrong address there, and says nowhere else why a message failed.
    """

    reason = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = SECRETS.hide(record.getMessage()), ()
        if record.levelno >= logging.WARNING:
            self.reason = record.msg
        return True


_APPRISE_LOG = _AppriseLog()


def _without_mentions(text: str) -> str:
    # Text from a run is untrusted: an invisible space keeps `@everyone` and `<!channel>`, which
    # apprise passes on to chat services, from waking people up.
    return re.sub(r"[@!](?=\S)", "\\g<0>\u200b", text)


class Outbox:
    """Sends the messages of one channel in order, and keeps what could not be sent.

    Each channel has its own, so that one that fails does not hold back the others.
    """

    def __init__(
        self, channel: Channel, waiting: list[dict[str, Any]], report: Callable[[str], None]
    ) -> None:
        """`waiting` is kept up to date in place: it is saved with the position of the sink."""
        self._channel = channel
        self._waiting = waiting
        self._report = report
        self._next_try = 0.0
        self._wait = FIRST_WAIT
        self._is_failing = False

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, alert: Alert) -> None:
        """Queue a message; drops the oldest if too many wait."""
        self._waiting.append(dataclasses.asdict(alert))
        if len(self._waiting) > MAX_MESSAGES:
            del self._waiting[0]
            self._report(f"{self._channel.name}: too many messages wait; the oldest is dropped")

    def flush(self, *, is_last: bool = False) -> bool:
        """Send what waits, unless it is too early to try again; return whether anything changed."""
        if not self._waiting or (time.monotonic() < self._next_try and not is_last):
            return False
        has_changed = False
        while self._waiting:
            alert = _restored(self._waiting[0])
            try:
                self._channel.send(alert, SEND_SECONDS)
            except Refused as error:
                self._report(f"{self._channel.name} refused a message: {SECRETS.describe(error)}")
            except Exception as error:
                if time.time() - alert.clock < MAX_AGE:
                    self._fail(error)
                    return has_changed
                self._report(
                    f"{self._channel.name}: a message of an hour ago is dropped: {alert.title}"
                )
            else:
                self._succeed()
            del self._waiting[0]
            has_changed = True
        return has_changed

    def _succeed(self) -> None:
        if self._is_failing:
            self._report(f"{self._channel.name} can be reached again")
        self._is_failing, self._wait = False, FIRST_WAIT

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            self._report(f"{self._channel.name} cannot be reached: {SECRETS.describe(error)}")
        self._is_failing = True
        self._next_try = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, MAX_WAIT)


def _restored(values: dict[str, Any]) -> Alert:
    return Alert(
        **values | {"state": AlertState(values["state"]), "level": AlertLevel(values["level"])}
    )
