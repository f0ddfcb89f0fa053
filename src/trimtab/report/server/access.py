"""Access: which requests are answered.

A server on loopback answers this machine only, but every page in the user's browser is on this
machine too. So the Host header must name this server (a page of a stranger that resolves its own
name to 127.0.0.1 does not), and requests that a different site makes are refused. A server that
others can reach needs a token as well.
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

COOKIE = "trimtab"


def is_loopback(host: str) -> bool:
    """Whether a bind to this address can only be reached from this machine."""
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
        """The access of a server; one that others can reach gets a token if none is given."""
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        return cls(host=host, port=port, token=token)

    def refuses(self, headers: Mapping[str, str]) -> str | None:
        """Why a request is refused; None if it is not. The token is checked apart from it."""
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
        """Whether a request has the token: in the address, in its cookie, or as a bearer."""
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
