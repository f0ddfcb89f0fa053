"""Outbox: the messages that one channel has not sent yet; a channel that fails holds no other."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from trimtab.core.sink import Refused
from trimtab.integrations.alerts.alert import Alert, AlertState, Level
from trimtab.integrations.alerts.channels import SEND_SECONDS, Channel
from trimtab.integrations.transport.secrets import SECRETS

FIRST_WAIT, MAX_WAIT = 2.0, 60.0
"""Seconds before a message is tried again: doubled from the first to the longest."""

MAX_AGE = 3600.0
"""A message that could not be sent for this long is dropped: people know by other ways."""

MAX_MESSAGES = 50


class Outbox:
    """Sends the messages of one channel in order, and keeps what could not be sent."""

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
        """Whether everything was sent."""
        return not self._waiting

    def add(self, alert: Alert) -> None:
        """Send this too; the oldest is dropped if too many wait."""
        self._waiting.append(dataclasses.asdict(alert))
        if len(self._waiting) > MAX_MESSAGES:
            del self._waiting[0]
            self._report(f"{self._channel.kind}: too many messages wait; the oldest is dropped")

    def flush(self, *, is_last: bool = False) -> bool:
        """Send what waits, unless it is too early to try again; whether anything changed."""
        if not self._waiting or (time.monotonic() < self._next_try and not is_last):
            return False
        has_changed = False
        while self._waiting:
            alert = _alert(self._waiting[0])
            try:
                self._channel.send(alert, SEND_SECONDS)
            except Refused as error:
                self._report(f"{self._channel.kind} refused a message: {SECRETS.describe(error)}")
            except Exception as error:
                if not self._drop_old(alert):
                    self._fail(error)
                    return has_changed
            else:
                self._succeed()
            del self._waiting[0]
            has_changed = True
        return has_changed

    def _succeed(self) -> None:
        if self._is_failing:
            self._report(f"{self._channel.kind} can be reached again")
        self._is_failing, self._wait = False, FIRST_WAIT

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            self._report(f"{self._channel.kind} cannot be reached: {SECRETS.describe(error)}")
        self._is_failing = True
        self._next_try = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, MAX_WAIT)

    def _drop_old(self, alert: Alert) -> bool:
        if time.time() - alert.clock < MAX_AGE:
            return False
        self._report(f"{self._channel.kind}: a message of an hour ago is dropped: {alert.title}")
        return True


def _alert(values: dict[str, Any]) -> Alert:
    return Alert(**values | {"state": AlertState(values["state"]), "level": Level(values["level"])})
