"""Damage: what a journal has lost, in one sentence each. Nothing is lost silently."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from trimtab.core.jsonable import to_jsonable


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
    extent: tuple[int, int] | None = None
    """The first byte affected and the one after the last, where known."""
    signal: str | None = None
    """The signal affected; None if whole records are."""

    def to_dict(self) -> dict[str, Any]:
        """The damage as a JSON object."""
        fields: dict[str, Any] = to_jsonable(self)
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self | None:
        """The damage of a JSON object that `to_dict` made; None if it is not one."""
        kind, file, sentence = (fields.get(name) for name in ("kind", "file", "sentence"))
        if kind not in set(DamageKind) or not isinstance(file, str):
            return None
        signal = fields.get("signal")
        return cls(
            kind=DamageKind(kind),
            file=file,
            sentence=str(sentence),
            ticks=_pair(fields.get("ticks")),
            extent=_pair(fields.get("extent")),
            signal=signal if isinstance(signal, str) else None,
        )


def _pair(value: Any) -> tuple[int, int] | None:
    match value:
        case [int(first), int(last)]:
            return first, last
    return None
