"""The lines of a journal: how one is written, what it means, and what is said of a damaged one.

A line is `crc32 of the body as 8 hex digits, space, body as compact JSON, newline`. Each line is
independent: damage to one never costs another. The body is ASCII and holds no newline. Python's
repr of a float is the shortest text that reads back as the same bits, so the text loses nothing;
NaN and the infinities are the strings of core.jsonable.

A line holds one entry: a record, or one of these kinds:

    segment    the first line of a file: schema, number of the file, qualities so far
    event      something known that happened
    quality    how far a signal can be trusted from here on
    dropped    ticks that were assigned but never written, because the disk did not keep up
    end        how the writer ended
    damage     what was found damaged when the file was sealed
    unknown    a line, or fields of a line, that this version does not understand; kept as it is

Entries other than records are numbered within their file (the field `note`), so a lost or repeated
one is noticed. A sealed file keeps them as the same lines.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeGuard
from zlib import crc32

from trimtab.core.block import NO_POSITION, Record
from trimtab.core.jsonable import number_from_json, to_jsonable
from trimtab.core.signals import Quality

Entry = dict[str, Any]
"""The content of one line."""

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

_PREFIX = 9  # 8 hex digits and a space


def encode_line(entry: Mapping[str, Any]) -> bytes:
    try:
        return frame_line(_encode(entry))
    except ValueError:  # NaN or infinity: rare, so the common line does not pay for the check
        return frame_line(_encode(to_jsonable(entry)))


def frame_line(text: str) -> bytes:
    """Add checksum and newline to JSON text."""
    body = text.encode("ascii")
    return b"%08x %s\n" % (crc32(body), body)


def decode_line(line: bytes) -> Entry | None:
    """Decode a line without its newline; None if it is damaged."""
    body = line[_PREFIX:]
    if line[:_PREFIX] != b"%08x " % crc32(body):
        return None
    try:
        entry = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


class DamageKind(StrEnum):
    """What kind of damage was found."""

    TORN_TAIL = "torn tail"
    """The last line of an open file is not complete: its writer was killed, or is writing it."""
    DAMAGED_LINES = "damaged lines"
    LOST_LINES = "lost lines"
    """Lines other than records are missing from the numbering."""
    DAMAGED_CHUNK = "damaged column chunk"
    """Some rows of one signal are lost."""
    DAMAGED_AXIS = "damaged axis chunk"
    """Some rows are lost, because their step or tick is."""
    DAMAGED_HEADER = "damaged header"
    """The second copy of the header was used; nothing is lost."""
    UNREADABLE = "unreadable file"
    MISSING_FILE = "missing file"
    LOST_TICKS = "lost ticks"
    """Ticks that neither a record nor a reported drop accounts for."""
    REPEATED = "repeated"
    """The same records or lines were found twice; the first were kept."""
    NEWER_SCHEMA = "newer schema"
    """Written by a later trimtab; what is not understood is kept but not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One damaged place of a journal: where, what, and what it costs."""

    kind: DamageKind
    file: str
    """The name of the file, or of the folder if several files are concerned."""
    sentence: str
    ticks: tuple[int, int] | None = None
    """The first and last tick affected, where known."""
    signal: str | None = None
    """The signal affected; None if whole records are."""

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_jsonable(self)
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self | None:
        """Read the JSON object of `to_dict`; None if it is not one."""
        kind, file, sentence = (fields.get(name) for name in ("kind", "file", "sentence"))
        if kind not in set(DamageKind) or not isinstance(file, str):
            return None
        signal = fields.get("signal")
        return cls(
            kind=DamageKind(kind),
            file=file,
            sentence=str(sentence),
            ticks=_pair(fields.get("ticks")),
            signal=signal if isinstance(signal, str) else None,
        )


def _pair(value: Any) -> tuple[int, int] | None:
    match value:
        case [int(first), int(last)]:
            return first, last
    return None


SCHEMA = 1
"""The version of the lines and of the sealed files that is written here."""

_FIELDS: dict[str, dict[str, type]] = {
    "segment": {"schema": int, "index": int, "qualities": dict},
    "event": {"event": str, "tick": int, "step": int, "facts": dict},
    "quality": {"signal": str, "quality": str},
    "dropped": {"first_tick": int, "count": int, "notes": int},
    "end": {"how": str},
    "damage": {"damage": dict},
    "unknown": {"tick": int, "step": int, "line": dict},
}
_RECORD_FIELDS = {"kind", "step", "tick", "attempt", "position", "signals"}


def parse_entry(entry: Entry, tick: int, step: int) -> tuple[Record | None, list[Entry]]:
    """Split an entry into its record, or None, and other entries with fields of the right types.

    Nothing is thrown away: what is not understood becomes an `unknown` entry at `tick` and `step`,
    unless it names its own.
    """
    kind = entry.get("kind")
    record: Record | None = None
    others: list[Entry] = []
    unknown = entry
    if kind == "record":
        record, unknown = _parse_record(entry)
    elif isinstance(kind, str) and kind in _FIELDS:
        known, unknown = _parse_other(entry, _FIELDS[kind])
        if known is not None:
            others.append(known)
    if unknown:
        position = record or Record(tick=tick, step=step, signals={})
        others.append(_unknown(unknown, position.tick, position.step))
    return record, others


def schema_of(entries: Iterable[Entry]) -> int:
    """Return the highest schema that the first lines of files name."""
    return max((entry["schema"] for entry in entries if entry["kind"] == "segment"), default=SCHEMA)


def _parse_record(entry: Entry) -> tuple[Record | None, Entry]:
    """Return the record in an entry, and the fields that are not understood."""
    step, tick, attempt = entry.get("step"), entry.get("tick"), entry.get("attempt", 0)
    position, signals = entry.get("position", NO_POSITION), entry.get("signals")
    if not (is_int64(step) and is_int64(tick) and is_int64(attempt) and is_int64(position)):
        return None, entry
    if tick < 0 or not isinstance(signals, dict):
        return None, entry
    numbers, not_numbers = _numbers(signals)
    record = Record(step=step, tick=tick, signals=numbers, attempt=attempt, data_position=position)
    unknown = {key: entry[key] for key in entry.keys() - _RECORD_FIELDS}
    if not_numbers:
        unknown["signals"] = not_numbers
    return record, unknown


def _numbers(signals: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    if all(type(value) is float for value in signals.values()):
        return signals, {}
    numbers = {name: number_from_json(value) for name, value in signals.items()}
    # null means that nothing was recorded, like an absent signal.
    not_numbers = {
        name: signals[name]
        for name, number in numbers.items()
        if number is None and signals[name] is not None
    }
    return {name: n for name, n in numbers.items() if n is not None}, not_numbers


def _parse_other(entry: Entry, fields: dict[str, type]) -> tuple[Entry | None, Entry]:
    """Return the entry with the fields of its kind, and the fields that are not understood."""
    for key, kind in fields.items():
        value = entry.get(key)
        if not (is_int64(value) if kind is int else isinstance(value, kind)):
            return None, entry
    common = {"kind", "note"} if is_int64(entry.get("note")) else {"kind"}
    unknown = {key: entry[key] for key in entry.keys() - fields.keys() - common}
    known = {key: entry[key] for key in entry if key not in unknown}
    match entry["kind"]:
        case "segment":
            # A quality of a later trimtab must not cost the whole first line of the file.
            qualities = {name: q for name, q in entry["qualities"].items() if _is_quality(q)}
            if len(qualities) < len(entry["qualities"]):
                unknown["qualities"] = entry["qualities"]
                known["qualities"] = qualities
        case "quality" if not _is_quality(entry["quality"]):
            return None, entry
        case "damage" if Damage.from_dict(entry["damage"]) is None:
            return None, entry
    return known, unknown


def _unknown(line: Entry, tick: int, step: int) -> Entry:
    """Wrap what was not understood in an entry of its own."""
    line_tick, line_step = line.get("tick"), line.get("step")
    entry: Entry = {
        "kind": "unknown",
        "tick": line_tick if is_int64(line_tick) else tick,
        "step": line_step if is_int64(line_step) else step,
        "line": line,
    }
    return entry | {"note": line["note"]} if is_int64(line.get("note")) else entry


def _is_quality(label: Any) -> bool:
    try:
        Quality.parse(label)
    except (ValueError, AttributeError):
        return False
    return True


def is_int64(value: Any) -> TypeGuard[int]:
    """Return whether it is an integer that a column can hold; JSON's true and false are not."""
    return type(value) is int and -(2**63) <= value < 2**63
