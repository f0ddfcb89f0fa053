"""Scalars in the summaries of TensorBoard: `simple_value`, or a tensor of one element."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.readers.trackers.tensorboard import protowire
from trimtab.readers.trackers.tensorboard.protowire import BYTES, FIXED32, FIXED64, VARINT

_VALUE = 1  # field of a summary
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8  # fields of a value
_DTYPE, _SHAPE, _CONTENT, _FLOATS, _DOUBLES = 1, 2, 4, 5, 6  # fields of a tensor
_INTS, _INT64S, _HALVES, _UINT32S, _UINT64S = 7, 10, 13, 16, 17
_BFLOAT16, _HALF = 14, 19  # dtypes

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_CONTENTS: Mapping[tuple[int, int], struct.Struct] = {
    (1, 4): _FLOAT,
    (2, 8): _DOUBLE,
    (3, 4): struct.Struct("<i"),
    (9, 8): struct.Struct("<q"),
    (_HALF, 2): struct.Struct("<e"),
    (22, 4): struct.Struct("<I"),
    (23, 8): struct.Struct("<Q"),
}
"""How the content of a tensor of one element is packed, by its dtype and its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpan:
    """Where a number is, if it is packed in a fixed number of bytes."""

    start: int
    end: int
    packed: struct.Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One scalar of a summary."""

    tag: str
    value: float
    span: ValueSpan | None = None


def scalars(data: bytes, start: int, end: int) -> list[Scalar]:
    """The scalars of the summary in data[start:end]; raises BadMessage if it is not one."""
    found: list[Scalar] = []
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (_VALUE, BYTES):
            scalar = _scalar(data, first, last)
            if scalar is not None:
                found.append(scalar)
    return found


def _scalar(data: bytes, start: int, end: int) -> Scalar | None:
    """The value of a summary, if it is a scalar."""
    tag = ""
    found: ValueSpan | float | None = None
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (_TAG, BYTES):
            tag = protowire.text(data, first, last)
        elif (number, wire) == (_SIMPLE_VALUE, FIXED32):
            found = ValueSpan(start=first, end=last, packed=_FLOAT)
        elif (number, wire) == (_TENSOR, BYTES):
            found = _element(data, first, last)
    if isinstance(found, ValueSpan):
        value = float(found.packed.unpack_from(data, found.start)[0])
        return Scalar(tag=tag, value=value, span=found)
    return None if found is None else Scalar(tag=tag, value=found)


def _element(data: bytes, start: int, end: int) -> ValueSpan | float | None:
    """The number in a tensor of one element; None if it has more, or no number."""
    dtype = 0
    found: ValueSpan | float | None = None
    for number, wire, first, last in protowire.fields(data, start, end):
        size = last - first
        if (number, wire) == (_DTYPE, VARINT):
            dtype = first
        elif (number, wire) == (_SHAPE, BYTES) and not _is_single(data, first, last):
            return None
        elif (number, wire) == (_CONTENT, BYTES):
            found = _content(data, dtype, first, last)
        elif number == _FLOATS and wire in (FIXED32, BYTES) and size == 4:
            found = ValueSpan(start=first, end=last, packed=_FLOAT)
        elif number == _DOUBLES and wire in (FIXED64, BYTES) and size == 8:
            found = ValueSpan(start=first, end=last, packed=_DOUBLE)
        elif number in (_INTS, _INT64S, _HALVES, _UINT32S, _UINT64S) and wire == BYTES:
            value, stop = protowire.varint(data, first, last)
            found = _number(value, number, dtype) if stop == last else None
        elif number in (_INTS, _INT64S, _HALVES, _UINT32S, _UINT64S) and wire == VARINT:
            found = _number(first, number, dtype)
    return found


def _content(data: bytes, dtype: int, start: int, end: int) -> ValueSpan | float | None:
    if dtype == _BFLOAT16 and end - start == 2:
        return _bfloat16(int.from_bytes(data[start:end], "little"))
    packed = _CONTENTS.get((dtype, end - start))
    return ValueSpan(start=start, end=end, packed=packed) if packed else None


def _number(value: int, number: int, dtype: int) -> float:
    """The value of a varint in a field of a tensor."""
    if number == _HALVES and dtype == _BFLOAT16:
        return _bfloat16(value)
    if number == _HALVES:
        return float(struct.unpack("<e", struct.pack("<H", value & 0xFFFF))[0])
    return float(value if number in (_UINT32S, _UINT64S) else protowire.signed(value))


def _bfloat16(bits: int) -> float:
    return float(_FLOAT.unpack(struct.pack("<I", (bits & 0xFFFF) << 16))[0])


def _is_single(data: bytes, start: int, end: int) -> bool:
    """Whether a shape is that of one element: no dimensions, or all of size one."""
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (2, BYTES):
            sizes = [f[2] for f in protowire.fields(data, first, last) if f[:2] == (1, VARINT)]
            if sizes != [1]:
                return False
    return True
