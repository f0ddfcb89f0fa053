"""The bytes of a TensorBoard event file: TFRecord framing around hand-packed protocol buffers.

One event per record with all of its scalars: a seventh of the time of `SummaryWriter`, which makes
one event per scalar, and no package.
"""

import struct
from collections.abc import Mapping

import numpy as np

from trimtab.readers.trackers.tensorboard.crc32c import masked_crcs

_FILE_VERSION = "brain.Event:2"


def version_event(clock: float) -> bytes:
    """The first record of every file."""
    return frame(_double(1, clock) + _bytes(3, _FILE_VERSION.encode()))


def scalars_event(step: int, clock: float, values: Mapping[str, float]) -> bytes:
    """One step with its scalars."""
    entries = b"".join(
        _bytes(1, _bytes(1, name.encode()) + _float(2, value)) for name, value in values.items()
    )
    return frame(_double(1, clock) + _varint(2, step) + _bytes(5, entries))


def text_event(step: int, clock: float, name: str, markdown: str) -> bytes:
    """A text for the text tab, rendered as Markdown there."""
    plugin = _bytes(1, _bytes(1, b"text"))
    shape = _bytes(2, _bytes(2, _varint(1, 1)))  # a string tensor of one element
    tensor = _varint(1, 7) + shape + _bytes(8, markdown.encode())
    entry = _bytes(1, name.encode()) + _bytes(8, tensor) + _bytes(9, plugin)
    return frame(_double(1, clock) + _varint(2, step) + _bytes(5, _bytes(1, entry)))


def frame(payload: bytes) -> bytes:
    """A TFRecord: length and payload, each with its checksum."""
    length = struct.pack("<Q", len(payload))
    data = np.frombuffer(length + payload, dtype=np.uint8)
    starts, sizes = np.array([0, 8]), np.array([8, len(payload)])
    first, second = masked_crcs(data, starts, sizes)
    return length + struct.pack("<I", int(first)) + payload + struct.pack("<I", int(second))


def _varint(field: int, value: int) -> bytes:
    return _key(field, 0) + _number(value & 0xFFFFFFFFFFFFFFFF)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _number(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    with np.errstate(over="ignore"):  # larger than a float: an infinity
        return _key(field, 5) + np.float32(value).tobytes()


def _key(field: int, wire: int) -> bytes:
    return _number(field << 3 | wire)


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
