"""The wire format of protocol buffers: enough of it to walk a message that is not trusted.

A message is a sequence of fields, each a key (number and wire type) and a value. Lengths are
checked against the message that contains them, so nothing is read or allocated beyond it.
"""

import struct
from dataclasses import dataclass

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


@dataclass(slots=True)
class Damage:
    """What could not be read of some files of messages."""

    num_bad: int = 0
    """Records that are not what was written, or not a message."""
    num_long: int = 0
    """Records that are too long to be examined."""
    num_cut: int = 0
    """Files whose last record is not complete."""
    num_lost_bytes: int = 0
    """Bytes after a length that is not what was written: no record can be found there."""

    @property
    def counts(self) -> dict[str, int]:
        return {
            "record{s} {is} left out: the checksum does not fit": self.num_bad,
            "record{s} too long to hold metrics {is} left out": self.num_long,
            "record{s} cut off at the end {is} left out": self.num_cut,
            "byte{s} after the first damaged length {is} left out": self.num_lost_bytes,
        }


def fields(data: bytes, start: int, end: int) -> list[Field]:
    """Return the fields of the message in data[start:end]; raises BadMessage if it is not one."""
    found: list[Field] = []
    offset = start
    while offset < end:
        key, offset = varint(data, offset, end)
        wire = key & 7
        if wire == VARINT:
            value, offset = varint(data, offset, end)
            found.append((key >> 3, wire, value, value))
            continue
        if wire == BYTES:
            size, offset = varint(data, offset, end)
        elif wire == FIXED32:
            size = 4
        elif wire == FIXED64:
            size = 8
        else:
            raise BadMessage(f"wire type {wire}")
        if size > end - offset:
            raise BadMessage("a field is longer than its message")
        found.append((key >> 3, wire, offset, offset + size))
        offset += size
    return found


def varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """Return the number at an offset, and where it ends."""
    value = shift = 0
    while offset < end and shift < 64:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, offset
        shift += 7
    raise BadMessage("a number has no end")


def signed(value: int) -> int:
    return value - 2 * _SIGN if value >= _SIGN else value


def double(data: bytes, offset: int) -> float:
    return float(_double(data, offset)[0])


def text(data: bytes, start: int, end: int) -> str:
    """Return a field as text; bytes that are not UTF-8 become U+FFFD."""
    return data[start:end].decode("utf-8", "replace")
