"""What a line means: a record, or a note. Notes are all lines that are not records.

    segment    the first line of a file: schema, number of the file, qualities so far
    event      something known that happened
    quality    how far a signal can be trusted from here on
    dropped    ticks that were given out but never written, because the disk did not keep up
    end        how the writer ended
    damage     what was found damaged when the file was sealed
    unknown    a line, or fields of a line, that this version does not understand; kept as it is

Notes are numbered within their file (`note`), so a lost or doubled one is noticed. A sealed file
keeps its notes as the same lines.
"""

from collections.abc import Iterable
from typing import Any, TypeGuard

from trimtab.core.block import NO_POSITION
from trimtab.core.builder import Record
from trimtab.core.jsonable import to_number
from trimtab.core.signals import Quality
from trimtab.journal.format.damage import Damage
from trimtab.journal.format.lines import Entry

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


def understand(entry: Entry, tick: int, step: int) -> tuple[Record | None, list[Entry]]:
    """What a line says: a record or None, and notes that are safe to take apart.

    Nothing of the entry is thrown away: what is not understood becomes an `unknown` note, placed
    at `tick` and `step` unless it names its own.
    """
    kind = entry.get("kind")
    record: Record | None = None
    notes: list[Entry] = []
    strange = entry
    if kind == "record":
        record, strange = _take_record(entry)
    elif isinstance(kind, str) and kind in _FIELDS:
        note, strange = _take_note(entry, _FIELDS[kind])
        if note is not None:
            notes.append(note)
    if strange:
        place = record or Record(tick=tick, step=step, signals={})
        notes.append(_unknown(strange, place.tick, place.step))
    return record, notes


def schema_of(notes: Iterable[Entry]) -> int:
    """The highest schema that the first lines of files name."""
    return max((note["schema"] for note in notes if note["kind"] == "segment"), default=SCHEMA)


def _take_record(entry: Entry) -> tuple[Record | None, Entry]:
    """The record in an entry, and the fields that are not understood."""
    step, tick, attempt = entry.get("step"), entry.get("tick"), entry.get("attempt", 0)
    position, signals = entry.get("position", NO_POSITION), entry.get("signals")
    if not (_is_int(step) and _is_int(tick) and _is_int(attempt) and _is_int(position)):
        return None, entry
    if tick < 0 or not isinstance(signals, dict):
        return None, entry
    numbers, not_numbers = _numbers(signals)
    record = Record(step=step, tick=tick, signals=numbers, attempt=attempt, data_position=position)
    strange = {key: entry[key] for key in entry.keys() - _RECORD_FIELDS}
    if not_numbers:
        strange["signals"] = not_numbers
    return record, strange


def _numbers(signals: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    if all(type(value) is float for value in signals.values()):
        return signals, {}
    numbers = {name: to_number(value) for name, value in signals.items()}
    # null says that nothing was recorded, which is the same as no entry.
    not_numbers = {
        name: signals[name]
        for name, number in numbers.items()
        if number is None and signals[name] is not None
    }
    return {name: n for name, n in numbers.items() if n is not None}, not_numbers


def _take_note(entry: Entry, fields: dict[str, type]) -> tuple[Entry | None, Entry]:
    """The note in an entry, and the fields that are not understood."""
    for key, kind in fields.items():
        value = entry.get(key)
        if not (_is_int(value) if kind is int else isinstance(value, kind)):
            return None, entry
    own = {"kind", "note"} if _is_int(entry.get("note")) else {"kind"}
    strange = {key: entry[key] for key in entry.keys() - fields.keys() - own}
    note = {key: entry[key] for key in entry if key not in strange}
    match entry["kind"]:
        case "segment":
            # A quality of a later trimtab must not cost the whole first line of the file.
            known = {name: q for name, q in entry["qualities"].items() if _is_quality(q)}
            if len(known) < len(entry["qualities"]):
                strange["qualities"] = entry["qualities"]
                note["qualities"] = known
        case "quality" if not _is_quality(entry["quality"]):
            return None, entry
        case "damage" if Damage.from_dict(entry["damage"]) is None:
            return None, entry
    return note, strange


def _unknown(line: Entry, tick: int, step: int) -> Entry:
    """A note that keeps what was not understood."""
    own_tick, own_step = line.get("tick"), line.get("step")
    note: Entry = {
        "kind": "unknown",
        "tick": own_tick if _is_int(own_tick) else tick,
        "step": own_step if _is_int(own_step) else step,
        "line": line,
    }
    return note | {"note": line["note"]} if _is_int(line.get("note")) else note


def _is_quality(label: Any) -> bool:
    try:
        Quality.parse(label)
    except (ValueError, AttributeError):
        return False
    return True


def _is_int(value: Any) -> TypeGuard[int]:
    """Whether it is an integer that a column can hold; JSON's true and false are none."""
    return type(value) is int and -(2**63) <= value < 2**63
