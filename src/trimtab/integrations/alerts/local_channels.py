"""A command of the user, and apprise for the services that trimtab does not speak itself."""

import contextlib
import json
import os
import signal
import subprocess
from typing import Any

from trimtab.core.errors import ConfigError, MissingExtra
from trimtab.integrations.alerts import formats
from trimtab.integrations.alerts.alert import Alert, Level
from trimtab.integrations.transport.deadline import call_within


class CommandChannel:
    """Runs one program for each alert: no shell, no arguments, the webhook's JSON as its input."""

    kind = "command"

    def __init__(self, path: str) -> None:
        if not os.access(path, os.X_OK):
            raise ConfigError(
                "command: takes the path of a program that can be executed; wrap what needs "
                "arguments in a script"
            )
        self._path = path

    def send(self, alert: Alert, seconds: float) -> None:
        """Run it; raises unless it ends with 0 in time, and kills it if it does not."""
        process = subprocess.Popen(  # noqa: S603 - the user's own program, and no shell
            [self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(formats.webhook(alert)).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.wait()
            raise TimeoutError(f"the command did not end within {seconds:g} s") from None
        if process.returncode != 0:
            raise ConnectionError(f"the command ended with code {process.returncode}")


class AppriseChannel:
    """Any service of apprise: `apprise:` and its own URL."""

    kind = "apprise"

    def __init__(self, url: str) -> None:
        try:
            import apprise
        except ImportError as error:
            raise MissingExtra(
                "addresses that start with apprise: need it; pip install 'trimtab[apprise]'"
            ) from error
        self._types: Any = {
            Level.INFO: apprise.NotifyType.INFO,
            Level.WARNING: apprise.NotifyType.WARNING,
            Level.ERROR: apprise.NotifyType.FAILURE,
        }
        self._client: Any = apprise.Apprise()
        if not self._client.add(url):
            raise ConfigError("apprise does not know the service of an address")

    def send(self, alert: Alert, seconds: float) -> None:
        """Send; raises unless the service took it."""
        is_sent = call_within(
            seconds,
            lambda connections: self._client.notify(
                title=alert.headline,
                body=alert.text or alert.title,
                notify_type=self._types[alert.level],
            ),
        )
        if not is_sent:
            raise ConnectionError("apprise could not send it")
