import json
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.journal.lines import SCHEMA, decode_line, encode_line, parse_entry

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


def checked(body: bytes) -> bytes:
    """A line with the right checksum for whatever body."""
    return b"%08x %s" % (crc32(body), body)


@given(entry=st.dictionaries(st.text(), json_values, max_size=5))
def test_an_entry_comes_back(entry: dict[str, object]) -> None:
    line = encode_line(entry)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert decode_line(line[:-1]) == entry


@given(flip=st.integers(min_value=0))
def test_one_changed_bit_is_noticed(flip: int) -> None:
    line = bytearray(encode_line({"kind": "end", "how": "closed", "loss": 2.71828})[:-1])
    flip %= len(line) * 8
    line[flip // 8] ^= 1 << flip % 8
    assert decode_line(bytes(line)) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"00000000",
        b"00000000 ",
        checked(b"")[:8],
        checked(b"[1]"),
        checked(b"3"),
        checked(b"{"),
        checked(b"\xff\xfe"),
        checked(b"[" * 100_000),
        checked(b"1" * 5000),
        encode_line({})[:-1].upper(),
    ],
)
def test_what_is_not_a_line_is_reported(line: bytes) -> None:
    # The last one is the empty entry, whose checksum holds a letter: case counts.
    assert decode_line(line) is None


RECORD = {"kind": "record", "step": 3, "tick": 4, "attempt": 0, "position": -1}


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ({"kind": "weather", "rain": 1}, {"kind": "weather", "rain": 1}),
        ({"kind": ["list"]}, {"kind": ["list"]}),
        (RECORD | {"signals": {"loss": 1.5}, "host": "a"}, {"host": "a"}),
        (RECORD | {"signals": {"loss": 1.5, "z": "1.5"}}, {"signals": {"z": "1.5"}}),
        (RECORD | {"signals": [1]}, RECORD | {"signals": [1]}),
        (RECORD | {"signals": {}, "tick": -1}, RECORD | {"signals": {}, "tick": -1}),
        (RECORD | {"signals": {}, "step": 2**63}, RECORD | {"signals": {}, "step": 2**63}),
        (RECORD | {"signals": {}, "step": True}, RECORD | {"signals": {}, "step": True}),
        ({"kind": "end", "how": 3}, {"kind": "end", "how": 3}),
        ({"kind": "end", "how": "x", "why": "y"}, {"why": "y"}),
        ({"kind": "end", "how": "x", "note": [1]}, {"note": [1]}),
        (
            {"kind": "quality", "signal": "loss", "quality": "superb"},
            {"kind": "quality", "signal": "loss", "quality": "superb"},
        ),
        (
            {"kind": "segment", "schema": 1, "index": 0, "qualities": {"a": "superb", "b": 3}},
            {"qualities": {"a": "superb", "b": 3}},
        ),
        ({"kind": "damage", "damage": {}}, {"kind": "damage", "damage": {}}),
    ],
)
def test_what_is_not_understood_is_kept(entry: dict[str, object], kept: dict[str, object]) -> None:
    _, notes = parse_entry(entry, tick=9, step=8)
    strange = [note["line"] for note in notes if note["kind"] == "unknown"]
    assert strange == [kept]


def test_an_unknown_line_has_a_place() -> None:
    _, (own,) = parse_entry({"kind": "weather", "tick": 5, "step": 2, "note": 7}, tick=9, step=8)
    assert (own["tick"], own["step"], own["note"]) == (5, 2, 7)
    _, (given_,) = parse_entry({"kind": "weather"}, tick=9, step=8)
    assert (given_["tick"], given_["step"]) == (9, 8)


def test_null_is_missing_and_integers_are_numbers() -> None:
    record, notes = parse_entry(RECORD | {"signals": {"a": None, "b": 3, "c": "NaN"}}, 0, 0)
    assert record is not None
    assert list(record.signals) == ["b", "c"]
    assert notes == []


def test_a_line_is_plain_json_after_its_checksum() -> None:
    line = encode_line({"kind": "segment", "schema": SCHEMA})
    assert json.loads(line[9:]) == {"kind": "segment", "schema": SCHEMA}
