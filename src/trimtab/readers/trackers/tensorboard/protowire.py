"""The wire format of protocol buffers: enough of it to walk a message that is not trusted.

A message is a run of fields, each a key (number and wire type) and a value. Lengths are checked
against the message that they stand in, so nothing is read or allocated beyond it.
"""

import struct

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5

Field = tuple[int, int, int, int]
"""Number, wire type, and where the value begins and ends; of a varint, the value itself twice."""

_SIGN = 1 << 63
_double = struct.Struct("<d").unpack_from


class BadMessage(ValueError):
    """The bytes are not a message."""


def fields(data: bytes, start: int, end: int) -> list[Field]:
    """The fields of the message in data[start:end]; raises BadMessage if it is none."""
    found: list[Field] = []
    place = start
    while place < end:
        key, place = varint(data, place, end)
        wire = key & 7
        if wire == VARINT:
            value, place = varint(data, place, end)
            found.append((key >> 3, wire, value, value))
            continue
        if wire == BYTES:
            size, place = varint(data, place, end)
        elif wire == FIXED32:
            size = 4
        elif wire == FIXED64:
            size = 8
        else:
            raise BadMessage(f"wire type {wire}")
        if size > end - place:
            raise BadMessage("a field is longer than its message")
        found.append((key >> 3, wire, place, place + size))
        place += size
    return found


def varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """The number at a place, and where it ends."""
    value = shift = 0
    while place < end and shift < 64:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
    raise BadMessage("a number has no end")


def signed(value: int) -> int:
    """A varint as the int64 that it stands for."""
    return value - 2 * _SIGN if value >= _SIGN else value


def double(data: bytes, place: int) -> float:
    """The double at a place."""
    return float(_double(data, place)[0])


def text(data: bytes, start: int, end: int) -> str:
    """A field as text; bytes that are not UTF-8 become U+FFFD."""
    return data[start:end].decode("utf-8", "replace")
