"""One checksummed line: `crc32 of the body as 8 hex digits, space, body as compact JSON, newline`.

A line stands for itself: damage to one never costs another. The body is ASCII and holds no
newline. Python's repr of a float is the shortest text that reads back as the same bits, so the
text loses nothing; NaN and the infinities are the strings that core.jsonable speaks.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any
from zlib import crc32

from trimtab.core.builder import Record
from trimtab.core.jsonable import to_jsonable

Entry = dict[str, Any]
"""What one line says."""

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

_PREFIX = 9  # 8 hex digits and a space


def encode(entry: Mapping[str, Any]) -> bytes:
    """The entry as one line."""
    try:
        text = _encode(entry)
    except ValueError:  # a NaN or an infinity: rare, so the common line does not pay for it
        text = _encode(to_jsonable(entry))
    body = text.encode("ascii")
    return b"%08x %s\n" % (crc32(body), body)


def encode_record(record: Record) -> bytes:
    """The record as one line."""
    values = record.signals.values()
    if not isfinite(sum(values)):  # a NaN or an infinity, or a sum too large: the long way
        return encode(
            {
                "kind": "record",
                "step": record.step,
                "tick": record.tick,
                "attempt": record.attempt,
                "position": record.data_position,
                "signals": record.signals,
            }
        )
    # The same text as above by a third less work, because a run repeats few sets of names.
    form = _form(tuple(record.signals))
    text = form % (record.step, record.tick, record.attempt, record.data_position, *values)
    body = text.encode("ascii")
    return b"%08x %s\n" % (crc32(body), body)


@lru_cache(maxsize=256)
def _form(names: tuple[str, ...]) -> str:
    signals = ",".join(_encode(name).replace("%", "%%") + ":%r" for name in names)
    axes = '"kind":"record","step":%d,"tick":%d,"attempt":%d,"position":%d'
    return "{" + axes + ',"signals":{' + signals + "}}"


def decode(line: bytes) -> Entry | None:
    """What a line without its newline says, or None if it is damaged."""
    body = line[_PREFIX:]
    if line[:_PREFIX] != b"%08x " % crc32(body):
        return None
    try:
        entry = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
