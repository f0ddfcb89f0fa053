"""What the columns of a log mean: the alias table and how it is applied.

The table itself is data: `aliases.toml`.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from trimtab.core.signals import ADVERSARY_LOSS, Quality
from trimtab.readers.cells import quoted, quoted_names

STEP: Final = "step"
"""The axis that counts optimizer updates."""

DATA_POSITION: Final = "data_position"
"""The axis that counts batches."""

_SEPARATORS = re.compile(r"[\s\-./_]+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_COMPOUND = re.compile(r"(\w+?)(?:loss|s?verlust)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One name that logs use for a signal."""

    signal: str
    name: str
    scale: float = 1.0
    """Factor from the unit of the column to the unit of the signal."""
    quality: Quality = Quality.RAW
    remark: str = ""
    """Added to the notes when this alias is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What each column of a log means."""

    aliases: Mapping[str, Alias]
    """Name in the log to alias, for every column; a column without an alias keeps its name."""
    notes: tuple[str, ...]

    @property
    def foreign(self) -> dict[str, str]:
        """Signal to the name in the log."""
        return {alias.signal: column for column, alias in self.aliases.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A column that asks to be a signal."""

    column: str
    alias: Alias
    order: tuple[bool, int]
    """The lowest wins: first those spelled as in the table, then those higher up in it."""
    known: bool = True
    """Whether the table has its name."""


class AliasTable:
    """The table of `aliases.toml`: which name in a log means which signal."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        aliases, worded = list[Alias](), list[Alias]()
        for entry in document["signal"]:
            name = entry["name"]
            aliases += [_parse_alias(name, one) for one in (name, *entry.get("aliases", ()))]
            worded += [_parse_alias(name, one) for one in entry.get("words", ())]
        self.aliases, self.worded = tuple(aliases), tuple(worded)
        """Names as they are spelled, and by their words; best first within each signal."""
        self._needed = [frozenset(alias.name.split()) for alias in self.worded]
        self._neutral = frozenset(document["neutral"].split())
        self.guessed: str = document["guess"]["signal"]
        """The signal that a column without an alias may be."""
        self.abbreviations: dict[str, str] = document["abbreviations"]
        translations = {
            word.replace("_", " "): english
            for english, words in document["translations"].items()
            for word in words.split()
        }
        self.translations = {w: translations[w] for w in sorted(translations, key=len)[::-1]}
        """Word to the English one; the longest first, as one may be part of another."""
        self._unless = frozenset(document["guess"]["unless"].split())
        names = [(position, alias.name) for position, alias in enumerate(self.aliases)]
        # No two aliases fold alike. Those with a star are matched only as they are spelled: folded,
        # `param_norm_ratio` would be one of `param_norm/*`.
        self._folded = {fold(name): position for position, name in names if "*" not in name}
        self._starred = {
            position: re.compile("(.+)".join(re.escape(part) for part in name.split("*")))
            for position, name in names
            if "*" in name
        }

    def claim(self, column: str) -> "_Claim":
        """Return what a column may be, by its name."""
        position = self._folded.get(fold(column))
        if position is None:  # `Schritt` is a step
            position = self._folded.get("_".join(words_of(column)))
        if position is not None:
            alias = self.aliases[position]
            return _Claim(column=column, alias=alias, order=(alias.name != column, position))
        place = self.by_words(words_of(column))
        if place is not None:
            order = (True, len(self.aliases) + place)
            return _Claim(column=column, alias=self.worded[place], order=order)
        for position, pattern in self._starred.items():
            match = pattern.fullmatch(column)
            if match:
                alias = self.aliases[position]
                filled = replace(alias, signal=alias.signal.replace("*", match[1]))
                return _Claim(column=column, alias=filled, order=(True, position))
        return _Claim(column=column, alias=_own_name(column), order=(False, 0), known=False)

    def by_words(self, words: Sequence[str]) -> int | None:
        """Return the place among `worded` of what these words mean, if they mean a signal."""
        found, all_needed = frozenset(words), enumerate(self._needed)
        fitting = [n for n, needed in all_needed if needed <= found <= needed | self._neutral]
        return max(fitting, key=lambda place: len(self._needed[place]), default=None)

    def may_be_guessed(self, column: str) -> bool:
        """Return whether a column without an alias may be the guessed signal."""
        is_name = self.guessed in column.lower() and "=" not in column
        return is_name and self._unless.isdisjoint(words_of(column))


def fold(name: str) -> str:
    """Return the name without the differences in spelling that do not count."""
    return _SEPARATORS.sub("_", name.strip().lower())


@lru_cache(maxsize=20_000)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name, in lower case and in English where the table knows them."""
    name = alias_table().abbreviations.get(name, name[:200])
    english = alias_table().translations
    if not name.isascii():
        for word in english:
            for spelling in () if word.isascii() else (word, word.capitalize(), word.upper()):
                name = name.replace(spelling, f" {english[word]} ")
    words = [word.lower() for word in _WORD.findall(name.replace("'s", " "))]
    words = " ".join(_COMPOUND.sub(r"\1 loss", word) for word in words).split()
    return tuple(english.get(word, word) for word in words)


@cache
def alias_table() -> AliasTable:
    text = files("trimtab.readers").joinpath("aliases.toml").read_text(encoding="utf-8")
    return AliasTable(tomllib.loads(text))


def name_columns(
    columns: Sequence[str],
    *,
    empty: Sequence[str] = (),
    meanings: Mapping[str, Alias] = MappingProxyType({}),
) -> Naming:
    """Decide what each column means, and note every choice that is not obvious.

    Empty columns are not used, but if one of them has a known name, nothing is guessed.
    `meanings` is what the format of the log knows better than the table.
    """
    table = alias_table()
    claims = [
        _Claim(column=column, alias=meanings[column], order=(False, -1))
        if column in meanings
        else table.claim(column)
        for column in columns
    ]
    rivals: dict[str, list[_Claim]] = {}
    for claim in claims:
        rivals.setdefault(claim.alias.signal, []).append(claim)
    aliases: dict[str, Alias] = {}
    notes: list[str] = []
    for signal, contenders in rivals.items():
        best, *others = sorted(contenders, key=lambda claim: claim.order)
        aliases[best.column] = best.alias
        aliases |= {other.column: _own_name(other.column) for other in others}
        taken = f"{signal} is taken from {quoted(best.column)}"
        if others:
            names = quoted_names([other.column for other in others])
            notes.append(f"{taken}; kept under its own name: {names}.")
        if best.alias.remark:
            notes.append(f"{taken}: {best.alias.remark}.")
    named = {claim.alias.signal for claim in (*claims, *map(table.claim, empty))}
    unknown = [claim.column for claim in claims if not claim.known]
    fitting = [column for column in unknown if table.may_be_guessed(column)]
    known = {table.guessed, ADVERSARY_LOSS}  # beside the latter it may be of either side
    if known.isdisjoint(named) and len(fitting) == 1:
        aliases[fitting[0]] = Alias(signal=table.guessed, name=fitting[0])
        notes.append(f"{table.guessed} is guessed to be {quoted(fitting[0])}; no known name fits.")
    return Naming(aliases=aliases, notes=tuple(notes))


def _parse_alias(signal: str, entry: str | Mapping[str, Any]) -> Alias:
    if isinstance(entry, str):
        return Alias(signal=signal, name=entry)
    return Alias(
        signal=signal,
        name=entry["name"],
        scale=entry.get("scale", 1.0),
        quality=Quality.parse(entry.get("quality", Quality.RAW.label)),
        remark=entry.get("remark", ""),
    )


def _own_name(column: str) -> Alias:
    return Alias(signal=column, name=column)
