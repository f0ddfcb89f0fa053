"""Protobuf messages and TFRecord files written by hand, for what no real writer would write."""

import struct


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def message(*fields: tuple[int, int | float | bytes]) -> bytes:
    """Fields by number: an int is a varint, a float a double, bytes a length and themselves."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def float32(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def event(step: int, *values: bytes, time: float = 1.7e9) -> bytes:
    return message((1, time), (2, step), (5, b"".join(message((1, value)) for value in values)))


def scalar(tag: str, value: float) -> bytes:
    return message((1, tag.encode())) + float32(2, value)


def tensor(tag: str, *fields: tuple[int, int | float | bytes], suffix: bytes = b"") -> bytes:
    return message((1, tag.encode()), (8, message(*fields))) + suffix


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + checksum(length) + payload + checksum(payload)


def checksum(data: bytes) -> bytes:
    """Masked CRC-32C, bit by bit as it is defined."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
