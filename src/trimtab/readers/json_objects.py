"""JSON objects as records: decoded without believing them, nested objects flattened.

{"train": {"loss": 2.5}} becomes the column train/loss. NaN and Infinity may be bare, as Python
writes them, or strings; null is missing.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NESTED_LEVELS = 16
"""Objects nested deeper hold no metrics; without a limit their names could fill the memory."""

NAME_CHARS = 256
"""A longer name, made by flattening, is not that of a metric."""

# Every number in a block is a float; int() would refuse one of more than 4,300 digits.
decode_json = json.JSONDecoder(parse_int=float).raw_decode
"""The value at the start of a text, and where it ends; raises ValueError or RecursionError."""

_BETWEEN = re.compile(r"[\s,]*")

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedItems:
    """The items of a JSON array, as far as they could be decoded."""

    records: list[Record]
    """The objects among them, flattened."""
    num_others: int
    """Items that are not objects."""
    end: int
    """Where the first item that could not be decoded begins, or the array ends."""
    closed: bool
    """Whether the end of the array was reached."""


def parse_object(line: str) -> Record | None:
    """The object in a line, flattened; None if the line is not one object."""
    try:
        record, end = decode_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or end < len(line):
        return None
    return flatten(record)


def decode_items(text: str, start: int) -> DecodedItems:
    """The items of an array from this index on, after its opening bracket."""
    records: list[Record] = []
    num_others = 0
    while True:
        between = _BETWEEN.match(text, start)
        start = between.end() if between else start
        closed = text.startswith("]", start)
        if not closed:
            try:
                item, start = decode_json(text, start)
            except (ValueError, RecursionError):
                pass
            else:
                if isinstance(item, dict):
                    records.append(flatten(item))
                else:
                    num_others += 1
                continue
        return DecodedItems(records=records, num_others=num_others, end=start, closed=closed)


def flatten(record: Record) -> Record:
    """The object with the members of nested objects as its own members."""
    return _flatten(record, "", 0) if dict in map(type, record.values()) else record


def _flatten(record: Record, prefix: str, level: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix + key
        if len(name) > NAME_CHARS:
            continue
        if not isinstance(value, dict):
            flat[name] = value
        elif level < NESTED_LEVELS:
            flat |= _flatten(value, f"{name}/", level + 1)
    return flat
