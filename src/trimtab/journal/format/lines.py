"""One checksummed line: `crc32 of the body as 8 hex digits, space, body as compact JSON, newline`.

Each line is independent: damage to one never costs another. The body is ASCII and holds no
newline. Python's repr of a float is the shortest text that reads back as the same bits, so the
text loses nothing; NaN and the infinities are the strings of core.jsonable.
"""

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from trimtab.core.jsonable import to_jsonable

Entry = dict[str, Any]
"""The content of one line."""

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

_PREFIX = 9  # 8 hex digits and a space


def encode(entry: Mapping[str, Any]) -> bytes:
    """The entry as one line."""
    try:
        return frame(_encode(entry))
    except ValueError:  # NaN or infinity: rare, so the common line does not pay for the check
        return frame(_encode(to_jsonable(entry)))


def frame(text: str) -> bytes:
    """JSON text as one line."""
    body = text.encode("ascii")
    return b"%08x %s\n" % (crc32(body), body)


def decode(line: bytes) -> Entry | None:
    """The entry of a line without its newline; None if it is damaged."""
    body = line[_PREFIX:]
    if line[:_PREFIX] != b"%08x " % crc32(body):
        return None
    try:
        entry = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
