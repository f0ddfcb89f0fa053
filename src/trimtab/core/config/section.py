"""Section: what every group of settings shares. Built from a mapping, checked by name and type.

A name that is not a setting is an error with the closest names in it, never ignored. A name that
was a setting once is an error that says why it is gone.
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self

from trimtab.core.errors import ConfigError
from trimtab.core.jsonable import to_jsonable

MAX_LISTED = 16
"""More names than this are not listed in an error."""


class Section:
    """A frozen dataclass of settings, or of sections of settings."""

    REMOVED: ClassVar[Mapping[str, str]] = {}
    """Names that were settings once, and why they are none any more."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build the section from values; raises ConfigError for a name that is not a setting."""
        known = _fields(cls)
        arguments: dict[str, Any] = {}
        for name, value in values.items():
            if name in cls.REMOVED:
                raise ConfigError(_removed(name, cls.REMOVED[name]))
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no setting {name!r}; {_hint(name, known)}")
            arguments[name] = _coerce(cls.__name__, known[name], value)
        return cls(**arguments)

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Return the dotted names of all settings, such as detect.threshold_scale."""
        return tuple(_dotted(cls))

    @classmethod
    def removed_names(cls) -> dict[str, str]:
        """Return the dotted names that were settings once, each with why it is gone."""
        removed = dict(cls.REMOVED)
        for name, setting in _fields(cls).items():
            if isinstance(setting.type, type) and issubclass(setting.type, Section):
                removed |= {f"{name}.{n}": why for n, why in setting.type.removed_names().items()}
        return removed

    def override(self, settings: Mapping[str, Any]) -> Self:
        """Return the section with some settings changed; raises ConfigError.

        A setting is named in full (detect.threshold_scale) or by its last part (threshold_scale)
        where only one setting has it.
        """
        values = self.to_dict()
        for name, value in settings.items():
            *path, last = self._find(name).split(".")
            table = values
            for part in path:
                table = table[part]
            table[last] = value
        return type(self).from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        settings: dict[str, Any] = to_jsonable(self)
        return settings

    def _find(self, name: str) -> str:
        """Return the dotted name of a setting that may be given by its last part."""
        known = self.setting_names()
        if name in known:
            return name
        found = [dotted for dotted in known if dotted.split(".")[-1] == name]
        if len(found) > 1:
            raise ConfigError(f"{name!r} names several settings: {', '.join(found)}")
        if not found:
            for dotted, why in self.removed_names().items():
                if name in (dotted, dotted.split(".")[-1]) or name.startswith(f"{dotted}."):
                    raise ConfigError(_removed(dotted, why))
            raise ConfigError(f"there is no setting {name!r}; {_hint(name, known)}")
        return found[0]


def require(condition: bool, message: str) -> None:
    """Raise ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def _removed(name: str, why: str) -> str:
    return f"{name!r} is not a setting any more: {why}; remove it from your settings"


def _fields(section: type[Section]) -> "dict[str, dataclasses.Field[Any]]":
    return {f.name: f for f in dataclasses.fields(section)}  # type: ignore[arg-type]


def _dotted(section: type[Section]) -> Iterator[str]:
    for name, setting in _fields(section).items():
        kind = setting.type
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from (f"{name}.{part}" for part in _dotted(kind))
        else:
            yield name


def _hint(name: str, known: Collection[str]) -> str:
    """Return the names that a wrong one may have been meant as, or where to find all of them."""
    lasts = {dotted.split(".")[-1]: dotted for dotted in known}
    last = name.split(".")[-1]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    close += [lasts[near] for near in difflib.get_close_matches(last, lasts, n=3, cutoff=0.7)]
    if close:
        return f"did you mean {' or '.join(repr(one) for one in dict.fromkeys(close))}?"
    if len(known) > MAX_LISTED:
        sections = ", ".join(dict.fromkeys(dotted.split(".")[0] for dotted in known))
        return f"settings begin with one of {sections} (docs: Settings)"
    return f"known: {', '.join(known)}"


def _coerce(section: str, setting: "dataclasses.Field[Any]", value: Any) -> Any:
    """Return a value as the setting's type; only an int converts, to a float."""
    kind = setting.type
    if isinstance(kind, type) and issubclass(kind, Section):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section}.{setting.name} is a table of settings, got {value!r}")
        return kind.from_dict(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (tuple[str, ...], tuple[int, ...]):
        part, words = (str, "strings") if kind == tuple[str, ...] else (int, "whole numbers")
        if not isinstance(value, list | tuple) or not all(type(item) is part for item in value):
            raise ConfigError(f"{section}.{setting.name} must be a list of {words}, got {value!r}")
        return tuple(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(value, str):
        if value not in list(kind):
            known = ", ".join(kind)
            raise ConfigError(f"{section}.{setting.name} must be one of {known}, got {value!r}")
        return kind(value)
    if isinstance(kind, type) and type(value) is not kind:
        raise ConfigError(f"{section}.{setting.name} must be {_in_words(kind)}, got {value!r}")
    return value


def _in_words(kind: type) -> str:
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return words.get(kind, kind.__name__)
