"""RunServer: the pages and streams of runs over HTTP.

    /                           the fleet, or the page of the only run
    /events                     changes of the fleet, as server-sent events
    /run/<id>/                  the page of a run
    /run/<id>/events            its new records, as server-sent events
    /run/<id>/incident/<n>      a post-mortem

No address names a file: runs have ids, incidents have numbers, everything else is not found.

A server on loopback answers this machine only, but every page in the user's browser is on this
machine too. So the Host header must name this server (a page of a stranger that resolves its own
name to 127.0.0.1 does not), and requests that a different site makes are refused. A server that
others can reach needs a token as well (`Access`).
"""

import hmac
import ipaddress
import json
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from trimtab.core.errors import TrimtabError
from trimtab.core.escaping import tag
from trimtab.observe.server.hub import Hub
from trimtab.observe.server.run_feed import RunFeed
from trimtab.report.pages.many_runs import fleet_page
from trimtab.report.pages.page import render_page
from trimtab.report.pages.run_page import dashboard_page, postmortem_page
from trimtab.report.run_report import RunReport

COOKIE = "trimtab"


def is_loopback(host: str) -> bool:
    """Return whether a bind to this address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a server expects of a request."""

    host: str
    """The address that it is bound to."""
    port: int
    token: str | None
    """Needed by every request, if there is one."""

    @classmethod
    def of(cls, host: str, port: int, token: str | None = None) -> "Access":
        """Make the access of a server; one that others can reach gets a token if none is given."""
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        return cls(host=host, port=port, token=token)

    def refuses(self, headers: Mapping[str, str]) -> str | None:
        """Return why a request is refused; None if it is not. `admits` checks the token."""
        host = headers.get("Host", "")
        if not self._is_own(host):
            return "the Host header does not name this server"
        origin = headers.get("Origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return "requests of other origins are refused"
        site = headers.get("Sec-Fetch-Site", "none")
        is_visit = headers.get("Sec-Fetch-Mode") == "navigate"
        is_page = headers.get("Sec-Fetch-Dest") == "document"
        if site not in ("same-origin", "none") and not (is_visit and is_page):
            return "requests of other sites are refused"
        return None

    def admits(self, given: str | None, headers: Mapping[str, str]) -> bool:
        """Return whether a request has the token: in the address, in its cookie, or as a bearer."""
        if self.token is None:
            return True
        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        offered = [given, bearer if scheme.lower() == "bearer" else None, _cookie(headers)]
        expected = self.token.encode()
        matches = [hmac.compare_digest((one or "").encode(), expected) for one in offered]
        return any(matches)

    def _is_own(self, host: str) -> bool:
        name, port = _split(host)
        if port != self.port:
            return False
        known = {self.host, "localhost", "127.0.0.1", "::1"}
        if not is_loopback(self.host):
            known.add(socket.gethostname())
            if _is_address(name):  # an address cannot be made to point elsewhere by its owner
                return True
        return name in known


def _split(host: str) -> tuple[str, int | None]:
    """Name and port of a Host header; 80 if it has none, None if it makes no sense."""
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not name:
        name, port = port, "80"
    name = name.removeprefix("[").removesuffix("]")
    return name, int(port or 80) if (port or "80").isascii() and (port or "80").isdigit() else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(headers: Mapping[str, str]) -> str | None:
    try:
        found = SimpleCookie(headers.get("Cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None


log = logging.getLogger("trimtab")

JudgeRun = Callable[[Path], RunReport]
"""Reads, judges and explains a run."""

MAX_STREAMS = 512
"""Browsers that may follow at the same time; each takes a thread."""

BEAT_SECONDS = 15.0
"""A comment is sent after this much silence, so that a browser that left is noticed."""

KEPT_REPORTS = 2
"""Reports that are kept: the records of the largest run that is read at once take 256 MB."""

FRESH_SECONDS = 30.0
"""A report is used again for this long: to judge a long run takes seconds."""

_RUN = re.compile(r"/run/([0-9a-f]{12})/(?:|events|incident/([0-9]{1,9}))")
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RunServer(ThreadingHTTPServer):
    """Serves what a hub follows."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, hub: Hub, judge: JudgeRun, token: str | None) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.hub = hub
        self.access = Access.of(host, self.server_address[1], token)
        self.streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._judge = judge
        self._reports: dict[str, tuple[float, int, RunReport]] = {}
        self._judging = threading.Lock()

    def report_of(self, id: str, feed: RunFeed) -> RunReport:
        """Return the run, judged; an earlier report is used again while it is fresh."""
        with self._judging:  # one at a time: judging takes all of a core
            held = self._reports.pop(id, None)
            version = feed.version
            is_fresh = held is not None and (
                held[1] == version or time.monotonic() - held[0] < FRESH_SECONDS
            )
            if held is None or not is_fresh:
                held = None  # its memory is needed now
                while len(self._reports) >= KEPT_REPORTS:
                    del self._reports[next(iter(self._reports))]
                held = (time.monotonic(), version, self._judge(feed.directory.root))
            self._reports[id] = held
            return held[2]


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: RunServer
    protocol_version = "HTTP/1.1"
    server_version = "trimtab"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        access = self.server.access
        headers = {name.title(): value for name, value in self.headers.items()}
        refusal = access.refuses(headers)
        if refusal is not None:
            self._send_text(HTTPStatus.FORBIDDEN, refusal)
            return
        target = urlsplit(self.path)
        query = parse_qs(target.query)
        given = query.get("token", [None])[0]
        if not access.admits(given, headers):
            self._send_text(HTTPStatus.UNAUTHORIZED, "open the address that trimtab printed")
            return
        if given is not None and access.token is not None:
            self._keep_token(target.path)
            return
        try:
            self._route(target.path, query)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the browser has left

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: a token may be in them."""

    def _route(self, path: str, query: dict[str, list[str]]) -> None:
        hub = self.server.hub
        found = _RUN.fullmatch(path)
        if path == "/" and len(hub.feeds) == 1:
            self._redirect(f"/run/{next(iter(hub.feeds))}/")
        elif path == "/":
            self._send_page(fleet_page(hub.fleet_since(-1)))
        elif path == "/events":
            self._stream_fleet(_whole_number(query, "after", self.headers.get("Last-Event-ID")))
        elif found is None or found[1] not in hub.feeds:
            self._send_text(HTTPStatus.NOT_FOUND, "not found")
        elif path.endswith("/events"):
            after = _whole_number(query, "after", self.headers.get("Last-Event-ID"))
            self._stream_run(hub.feeds[found[1]], after)
        else:
            self._send_run(found[1], None if found[2] is None else int(found[2]))

    def _send_run(self, id: str, number: int | None) -> None:
        feed = self.server.hub.feeds[id]
        version = feed.version
        try:
            report = self.server.report_of(id, feed)
        except (TrimtabError, OSError, ValueError) as error:
            body = tag("main", tag("h1", feed.name), tag("p", str(error)))
            self._send_page(render_page(title=feed.name, body=body), HTTPStatus.OK)
            return
        if number is None:
            files = {
                one.incident.number: f"incident/{one.incident.number}" for one in report.incidents
            }
            live = {"version": version, "ended": feed.ended}
            self._send_page(dashboard_page(report, files=files, live=live))
            return
        chosen = next((one for one in report.incidents if one.incident.number == number), None)
        if chosen is None:
            self._send_text(HTTPStatus.NOT_FOUND, "not found")
        else:
            self._send_page(postmortem_page(chosen, report, back="../"))

    def _stream_fleet(self, version: int) -> None:
        def changes() -> list[tuple[int, bytes]]:
            nonlocal version
            if self.server.hub.version <= version:
                return []
            fleet = self.server.hub.fleet_since(version)
            version = fleet["version"]
            return [(version, json.dumps(fleet, allow_nan=False).encode())]

        self._stream(changes, lambda: self.server.hub.version > version)

    def _stream_run(self, feed: RunFeed, version: int) -> None:
        def changes() -> list[tuple[int, bytes]]:
            nonlocal version
            if feed.version <= version:
                return []
            waiting = feed.messages_since(version)
            if waiting is None:
                version = feed.version
                return [(version, b'{"reload":true}')]
            version = waiting[-1][0] if waiting else version
            return waiting

        self._stream(changes, lambda: feed.version > version)

    def _stream(
        self, changes: Callable[[], list[tuple[int, bytes]]], is_new: Callable[[], bool]
    ) -> None:
        """Send changes as they come, until the browser leaves or the server ends."""
        if not self.server.streams.acquire(blocking=False):
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, "too many browsers follow already")
            return
        hub = self.server.hub
        try:
            self.close_connection = True
            self._start(HTTPStatus.OK, "text/event-stream; charset=utf-8", None)
            if self.command == "HEAD":
                return
            while not hub.closed:
                found = changes()
                parts = (b"id: %d\ndata: %b\n\n" % message for message in found)
                self.wfile.write(b"".join(parts) or b": still here\n\n")
                with hub.changed:
                    hub.changed.wait_for(lambda: hub.closed or is_new(), BEAT_SECONDS)
        finally:
            self.server.streams.release()

    def _keep_token(self, path: str) -> None:
        """Move the token from the address into a cookie, where no log or screenshot shows it."""
        cookie = f"{COOKIE}={self.server.access.token}; HttpOnly; SameSite=Strict; Path=/"
        self._redirect("/" + path.lstrip("/"), {"Set-Cookie": cookie})

    def _redirect(self, to: str, more: dict[str, str] | None = None) -> None:
        self._start(HTTPStatus.SEE_OTHER, "text/plain", 0, {"Location": to, **(more or {})})

    def _send_page(self, page: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, "text/html; charset=utf-8", page.encode("utf-8"))

    def _send_text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self._start(status, kind, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _start(
        self, status: HTTPStatus, kind: str, length: int | None, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()


def _whole_number(query: dict[str, list[str]], name: str, last: str | None) -> int:
    """Return the version that a stream goes on from; 0, before the first one, if none is named."""
    for text in (last, *query.get(name, [])):
        if text is not None and text.isascii() and text.isdigit() and len(text) < 16:
            return int(text)
    return 0
