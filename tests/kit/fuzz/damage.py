"""Damage: an input with a few things wrong in it."""

import json
import random
from collections.abc import Sequence
from typing import Any

LARGEST = 1 << 16
_WORDS = (
    b'\n \r\n \0 \x1b[31m [rank1]: nan -inf 1e308 1e999 | { } [ " , : = # step loss PAR1 '
    b"4294967295 \xff\xfe \x80 \xff\xff\xff\xff \x7f\xff\xff\xff \x00\x00\x00\x80"
)
TOKENS = [*_WORDS.split(b" "), b" " * 300, b"9" * 400, b"1.1,1.1," * 50, b"a: 1.1.1 " * 40]
VALUES: tuple[Any, ...] = (
    *(None, True, "", "x", "NaN", "../../x", -1, 0, 1, 2**31, 2**63, 2**64, 10**400),
    *(0.5, 1e308, float("nan"), float("-inf"), [], {}, [[]], {"a": None}),
)


def damage(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """The data with wrong bytes; or, if it is JSON, now and then with a wrong value."""
    if data[:1] in (b"{", b"[") and rng.random() < 0.5:
        try:
            return json.dumps(_with_wrong_value(json.loads(data), rng)).encode()
        except (ValueError, RecursionError):
            pass  # JSON lines, or damaged before
    damaged = bytearray(data[: rng.choice((512, 4096, LARGEST))])
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place = rng.randrange(len(damaged) + 1)
        length = rng.choice((0, 1, 2, 8, 64))
        match rng.randrange(6):
            case 0:
                damaged[place : place + length] = rng.choice(TOKENS)
            case 1:
                damaged[place : place + length] = rng.randbytes(rng.choice((1, 4, 16)))
            case 2:
                del damaged[place : place + 8 * length]
            case 3:
                damaged[place:place] = damaged[place : place + 8 * length] * rng.choice((1, 2, 16))
            case 4:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                damaged[place:place] = other[start : start + 512]
            case _ if place < len(damaged):
                damaged[place] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _with_wrong_value(value: Any, rng: random.Random) -> Any:
    """The value with one part replaced, removed or repeated, at a random depth."""
    if rng.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return rng.choice(VALUES)
    if isinstance(value, list):
        place = rng.randrange(len(value))
        changed = list(value)
        if rng.random() < 0.2:
            return changed[:place] if rng.random() < 0.5 else changed + changed[:place]
        changed[place] = _with_wrong_value(value[place], rng)
        return changed
    key = rng.choice(list(value))
    if rng.random() < 0.2:
        return {name: part for name, part in value.items() if name != key}
    return {**value, key: _with_wrong_value(value[key], rng)}
