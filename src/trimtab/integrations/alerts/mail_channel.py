"""E-mail by SMTP: `smtp://user:password@host:587/?from=a@x.org&to=b@x.org&to=c@x.org`.

`smtps://` speaks TLS from the start. `smtp://` asks for STARTTLS, and requires it if there is a
password: a password is never sent in the clear.
"""

import smtplib
import socket
import ssl
from urllib.parse import parse_qs, unquote, urlsplit

from trimtab.core.errors import ConfigError
from trimtab.integrations.alerts import formats
from trimtab.integrations.alerts.alert import Alert
from trimtab.integrations.transport.deadline import Connections, call_within


class MailChannel:
    """Sends each alert as one message."""

    kind = "mail"

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        query = parse_qs(parts.query)
        self._recipients = [one for given in query.get("to", []) for one in given.split(",")]
        sender = query.get("from", self._recipients)
        if not parts.hostname or not self._recipients:
            raise ConfigError("an e-mail address is smtp://HOST/?from=ADDRESS&to=ADDRESS")
        self._sender = sender[0]
        self._is_tls = parts.scheme == "smtps"
        self._host = parts.hostname
        self._port = parts.port or (465 if self._is_tls else 587 if parts.username else 25)
        self._user = unquote(parts.username) if parts.username else None
        self._password = unquote(parts.password or "")

    def send(self, alert: Alert, seconds: float) -> None:
        """Send; raises unless the server took it."""
        call_within(seconds, lambda connections: self._send(alert, connections, seconds))

    def _send(self, alert: Alert, connections: Connections, seconds: float) -> None:
        message = formats.mail(alert, self._sender, self._recipients)
        with _connect(self._host, self._port, self._is_tls, connections, seconds) as server:
            server.ehlo()
            if not self._is_tls and server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
                server.ehlo()
            elif self._user and not self._is_tls:
                raise ConnectionError("the mail server offers no TLS; the password is not sent")
            if self._user:
                server.login(self._user, self._password)
            server.send_message(message, self._sender, self._recipients)


def _connect(
    host: str, port: int, is_tls: bool, connections: Connections, seconds: float
) -> smtplib.SMTP:
    class Watched(smtplib.SMTP):
        def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
            made = socket.create_connection((host, port), timeout)
            connections.add(made)
            if is_tls:
                context = ssl.create_default_context()
                return context.wrap_socket(made, server_hostname=host)
            return made

    return Watched(host, port, timeout=seconds)
