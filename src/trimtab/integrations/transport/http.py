"""One HTTP request, by the standard library, with a hard deadline.

Proxies and certificates come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).
Redirects are not followed: an address with a token in it must not reach a different host.
"""

import base64
import http.client
import json
import socket
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from trimtab._version import __version__
from trimtab.core.errors import ConfigError
from trimtab.core.sink import Refused
from trimtab.integrations.transport.deadline import Connections, call_within

MAX_BODY = 4 * 2**20
"""Bytes of an answer that are read; the largest that is needed is a page of runs."""

_CONTENT_ERRORS = frozenset({400, 406, 409, 413, 415, 422})
"""Answers that are about what was sent. The other errors, such as an expired token (401) or a
server that is being deployed (404, 502), can go away, and nothing is dropped for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server answered."""

    status: int
    body: bytes
    headers: Message = field(default_factory=Message)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is something else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def require_success(self) -> "Reply":
        """The reply itself; raises Refused, or ConnectionError if trying again may help."""
        if 200 <= self.status < 300:
            return self
        if 300 <= self.status < 400:
            raise ConnectionError(
                f"the server answers {self.status}, a redirect; redirects are not followed, so set "
                "the final address"
            )
        text = " ".join(self.body[:300].decode("utf-8", "replace").split())
        message = f"the server answers {self.status}: {text}"
        raise Refused(message) if self.status in _CONTENT_ERRORS else ConnectionError(message)


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """A URL without user and password, and the header that carries them."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("an address must start with http:// or https:// and name a host")
    if parts.username is None:
        return url, {}
    bare = SplitResult(parts.scheme, _host(parts), parts.path, parts.query, parts.fragment)
    return urlunsplit(bare), basic_auth(unquote(parts.username), unquote(parts.password or ""))


def basic_auth(user: str, password: str) -> dict[str, str]:
    """The header of a user and password."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    return {"Authorization": f"Basic {token}"}


def post_json(
    url: str, value: Any, seconds: float, headers: Mapping[str, str] | None = None
) -> Reply:
    """Post a JSON value."""
    body = json.dumps(value).encode("utf-8")
    return send(
        "POST", url, body, {"Content-Type": "application/json", **(headers or {})}, seconds=seconds
    )


def send(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float,
) -> Reply:
    """Send one request; the answer, whatever its status. Raises OSError if none came in time."""
    bare, credentials = split_credentials(url)
    request = urllib.request.Request(bare, data=body, method=method)  # noqa: S310 - http(s) only
    for name, value in {
        "User-Agent": f"trimtab/{__version__}",
        **credentials,
        **(headers or {}),
    }.items():
        request.add_header(name, value)
    try:
        return call_within(seconds, lambda connections: _open(request, connections, seconds))
    except http.client.HTTPException as error:  # a cut answer, or one that is no HTTP
        raise ConnectionError(f"the answer was cut or is no HTTP: {type(error).__name__}") from None


def _open(request: urllib.request.Request, connections: Connections, seconds: float) -> Reply:
    opener = urllib.request.build_opener(
        _Http(connections), _Https(connections), _AnyStatus(), urllib.request.ProxyHandler()
    )
    with opener.open(request, timeout=seconds) as response:
        body = response.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise ConnectionError(f"the answer has more than {MAX_BODY} bytes")
        missing = response.length  # None if the server gave no length
        if missing:
            raise ConnectionError("the answer was cut")
        return Reply(status=response.status, body=body, headers=response.headers)


class _Http(urllib.request.HTTPHandler):
    """Registers the socket, so that a deadline can end it."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        connections = self._connections

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                connections.add(self.sock)

        return self.do_open(Connection, request)


class _Https(urllib.request.HTTPSHandler):
    """The same for TLS; the handshake may be slow too, so the bare socket is registered."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        connections = self._connections

        class Connection(http.client.HTTPSConnection):
            def connect(self) -> None:
                make = self._create_connection  # type: ignore[has-type]

                def create(*args: Any, **kwargs: Any) -> socket.socket:
                    made: socket.socket = make(*args, **kwargs)
                    connections.add(made)
                    return made

                self._create_connection = create
                super().connect()

        return self.do_open(Connection, request)


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Every status is an answer; without this, errors raise and redirects are followed."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"
