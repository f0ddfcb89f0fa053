"""Encoding damage: text that was decoded wrongly before it reached the corpus."""

import re
from collections.abc import Mapping
from functools import cache

_SIGNS: Mapping[str, re.Pattern[str]] = {
    "replacement characters": re.compile("\ufffd"),
    # UTF-8 read as Latin-1 or Windows-1252: "é" becomes "Ã©", a curly quote "â€™".
    "UTF-8 read as Latin-1": re.compile(
        "[\u00c3\u00c2][\u0080-\u00bf]|\u00e2\u20ac|\u00ef\u00bb\u00bf"
    ),
    "control characters": re.compile("[\x00-\x08\x0e-\x1f\x7f\x80-\x9f]"),
    "lone surrogates": re.compile("[\ud800-\udfff]"),
}
"""What each kind looks like."""


def damage_in(text: str) -> str:
    """Return the kinds of damage in a text, separated by commas; empty if it has none."""
    return ", ".join(kind for kind, sign in _SIGNS.items() if sign.search(text))


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the characters that byte-level vocabularies write for bytes (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in shown}
    hidden = [byte for byte in range(256) if byte not in shown]
    return table | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def damaged_tokens(vocabulary: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the ids of a vocabulary that stand for damaged text, by kind.

    Part of a character is no damage: a byte-level token may end in the middle of one.
    """
    found: dict[str, list[int]] = {}
    for token, id in vocabulary.items():
        text = _text_of(token)
        for kind in filter(None, damage_in(text).split(", ")):
            found.setdefault(kind, []).append(id)
    return {kind: sorted(ids) for kind, ids in sorted(found.items())}


def _text_of(token: str) -> str:
    """Return the text of a token of a byte-level vocabulary, or the token itself."""
    table = _byte_alphabet()
    if len(token) < 2 or not all(char in table for char in token):
        return token if len(token) > 1 else ""
    data = bytes(table[char] for char in token)
    return data.decode("utf-8", "ignore")
