"""Addresses and tokens are replaced in every message: the URL of a chat webhook is a password."""

import re
from urllib.parse import unquote, urlsplit

from trimtab.core.plugins import describe_error

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
        self._values |= {piece for piece in pieces if len(piece) >= _MIN_LENGTH}

    def hide(self, text: str) -> str:
        """The text without the secrets."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, HIDDEN)
        return text

    def describe(self, error: BaseException) -> str:
        """An error in one line, without the secrets."""
        return self.hide(describe_error(error))


SECRETS = Secrets()
"""The secrets of this process; code that reads one from the environment adds it."""
