"""Requests to other machines: no secret in any message, a hard deadline, no redirects.

    Secrets       replaces addresses and tokens in messages: the URL of a chat webhook is a password
    call_within   a call that returns or raises in time, whatever the other side does
    send          one HTTP request by the standard library

A socket timeout limits one read, not the call: a server that sends a byte every second holds a
request with a timeout of 3 s for as long as it likes, and a name lookup has no timeout at all.

Proxies and certificates come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).
Redirects are not followed: an address with a token in it must not reach a different host.
"""

import base64
import contextlib
import http.client
import json
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from trimtab._version import __version__
from trimtab.core.errors import ConfigError
from trimtab.core.plugins import describe_error
from trimtab.core.sink import Refused

HIDDEN = "***"
_MIN_LENGTH = 6
"""A shorter part of an address, such as `api` or a port, is no secret and may be in any word."""


class Secrets:
    """The secrets of this process."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def add(self, value: str) -> None:
        """Hide a token, or an address with everything in it but its host."""
        parts = urlsplit(value)
        pieces = {value, unquote(value)}
        if parts.scheme:
            pieces |= {parts.path, parts.query, parts.username or "", parts.password or ""}
            pieces |= set(re.split(r"[/&=?]", f"{parts.path}/{parts.query}"))
            pieces |= {parts.netloc.rpartition("@")[0]}
            if not parts.scheme.endswith(("http", "https")):
                # apprise has keys where other addresses have the host: `pagerduty://KEY@KEY`
                pieces |= {parts.netloc, *re.split("[@:]", parts.netloc)}
        pieces |= {unquote(piece) for piece in pieces}
        # As a server may echo it: in an address, or in JSON that escapes slashes.
        pieces |= {quote(piece, safe="") for piece in pieces}
        pieces |= {piece.replace("/", "\\/") for piece in pieces}
        self._values |= {piece for piece in pieces if len(piece) >= _MIN_LENGTH}

    def hide(self, text: str) -> str:
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, HIDDEN)
        return text

    def describe(self, error: BaseException) -> str:
        return self.hide(describe_error(error))


SECRETS = Secrets()
"""The secrets of this process; code that reads one from the environment adds it."""

_Result = TypeVar("_Result")


class Connections:
    """The sockets of one call; all are shut down when its time is over."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._is_over = False
        self._lock = threading.Lock()

    def add(self, connection: socket.socket) -> None:
        """Register a socket; it is shut down at once if the time is over."""
        with self._lock:
            self._sockets.append(connection)
            if self._is_over:
                _shut_down(connection)

    def shut_down(self) -> None:
        with self._lock:
            self._is_over = True
            for connection in self._sockets:
                _shut_down(connection)


def call_within(seconds: float, work: Callable[[Connections], _Result]) -> _Result:
    """Return the result of `work`; raises TimeoutError when the time is over.

    The work runs in a thread that ends with its connections. A name lookup cannot be interrupted:
    its thread goes on alone and ends with the lookup.
    """
    connections = Connections()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(connections))
        except BaseException as error:  # handed to the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="trimtab-request", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        connections.shut_down()
        raise TimeoutError(f"no complete answer within {seconds:g} s")
    if errors:
        raise errors[0]
    return results[0]


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


MAX_BODY = 4 * 2**20
"""Bytes of an answer that are read; the largest that is needed is a page of runs."""

_MAX_ECHO, _MAX_QUOTE = 1 << 16, 300
"""Characters of an error page that are searched for secrets, and that are quoted."""

_CONTENT_ERRORS = frozenset({400, 406, 409, 413, 415, 422})
"""Answers that are about what was sent. The other errors, such as an expired token (401) or a
server that is being deployed (404, 502), can go away, and nothing is dropped for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server answered."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; empty if it is something else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def require_success(self) -> "Reply":
        """Return the reply itself; raises Refused, or ConnectionError if trying again may help."""
        if 200 <= self.status < 300:
            return self
        if 300 <= self.status < 400:
            raise ConnectionError(
                f"the server answers {self.status}, a redirect; redirects are not followed, so set "
                "the final address"
            )
        # Hidden before it is cut: half of a secret would not be recognized.
        text = SECRETS.hide(self.body.decode("utf-8", "replace")[:_MAX_ECHO])
        text = " ".join(text.split())[:_MAX_QUOTE]
        message = f"the server answers {self.status}: {text}"
        raise Refused(message) if self.status in _CONTENT_ERRORS else ConnectionError(message)


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without user and password, and the header that carries them."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("an address must start with http:// or https:// and name a host")
    if parts.username is None:
        return url, {}
    bare = SplitResult(parts.scheme, _host(parts), parts.path, parts.query, parts.fragment)
    return urlunsplit(bare), basic_auth(unquote(parts.username), unquote(parts.password or ""))


def basic_auth(user: str, password: str) -> dict[str, str]:
    """Return the header of a user and password, and hide it in every message."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    SECRETS.add(token)
    return {"Authorization": f"Basic {token}"}


def post_json(
    url: str, value: Any, seconds: float, headers: Mapping[str, str] | None = None
) -> Reply:
    """Post a JSON value; return the answer, whatever its status."""
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
    """Send one request; return the answer, whatever its status.

    Raises OSError if none came in time.
    """
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
        _RegisteringHandler(connections), _AnyStatus(), urllib.request.ProxyHandler()
    )
    # The socket's own timeout is longer, so that it is always the deadline that ends a request.
    with opener.open(request, timeout=seconds + 1) as response:
        body = response.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise ConnectionError(f"the answer has more than {MAX_BODY} bytes")
        missing = response.length  # None if the server gave no length
        if missing:
            raise ConnectionError("the answer was cut")
        return Reply(status=response.status, body=body)


class _RegisteringHandler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Registers the socket of a request, so that a deadline can end it."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._registering(http.client.HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._registering(http.client.HTTPSConnection), request)

    def _registering(self, kind: type[http.client.HTTPConnection]) -> Any:
        connections = self._connections

        class Connection(kind):  # type: ignore[misc, valid-type]
            def connect(self) -> None:
                make = self._create_connection  # type: ignore[has-type]

                def create(*args: Any, **kwargs: Any) -> socket.socket:
                    made: socket.socket = make(*args, **kwargs)
                    connections.add(made)  # the bare socket: a TLS handshake may be slow too
                    return made

                self._create_connection = create
                super().connect()

        return Connection


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Every status is an answer; without this, errors raise and redirects are followed."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"
