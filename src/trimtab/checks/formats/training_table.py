"""A plan under trimtab's names: the `[training]` table of a file, or a mapping."""

import dataclasses
import difflib
import json
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from trimtab.checks.formats.reading import ConfigReading, Dialect, Spelling, Syntax
from trimtab.checks.plan import TrainingPlan
from trimtab.core.errors import UnreadablePlan

FIELDS = frozenset(field.name for field in dataclasses.fields(TrainingPlan))
_TYPES = get_type_hints(TrainingPlan)


def read_training_table(
    training: Mapping[str, Any],
    *,
    source: str,
    lines: Mapping[str, int] | None = None,
    syntax: Syntax = Syntax.JSON,
    off: tuple[str, ...] = (),
) -> ConfigReading:
    return ConfigReading(
        source=source,
        dialect=DIALECTS[syntax],
        plan=TrainingPlan(**typed_settings(training, source)),
        lines={name: line for name, line in (lines or {}).items() if name in FIELDS},
        off=off,
    )


def typed_settings(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return each setting in the type of its field; raise UnreadablePlan if one does not fit."""
    typed: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(FIELDS))}"
            raise UnreadablePlan(f"{source}: a plan has no setting {name!r}; {hint}")
        if value is not None:
            typed[name] = _typed(source, name, value)
    return typed


def _typed(source: str, name: str, value: Any) -> Any:
    """Return the value in the type of its field; raise UnreadablePlan if it does not fit."""
    hint = _TYPES[name]
    kind = next(k for k in (get_args(hint) or (hint,)) if k is not types.NoneType)
    if name == "lr_points":
        return _points(source, value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value.lower()
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if numeric and (kind is float or (kind is int and float(value).is_integer())):
        return kind(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value in set(kind):
            return kind(value)
        raise UnreadablePlan(f"{source}: {name} is {value!r}; it can be {', '.join(kind)}")
    wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
    raise UnreadablePlan(f"{source}: {name} is {value!r}, which is not {wanted}")


def _points(source: str, value: Any) -> tuple[tuple[int, float], ...]:
    try:
        points = tuple((int(step), float(rate)) for step, rate in value)
    except (TypeError, ValueError):
        points = ()
    if len(points) < 2:
        raise UnreadablePlan(
            f"{source}: lr_points must be two or more pairs [step, rate], got {value!r}"
        )
    return points


# A list or a text of JSON is one of TOML and of YAML too.
_LINES = {
    Syntax.JSON: '"{name}": {value},',
    Syntax.TOML: "{name} = {value}",
    Syntax.YAML: "{name}: {value}",
}


def _spelling(name: str, line: str) -> Spelling:
    return lambda value: line.format(name=name, value=json.dumps(value))


DIALECTS = {
    syntax: Dialect(
        name="training plan", spellings={name: _spelling(name, line) for name in FIELDS}
    )
    for syntax, line in _LINES.items()
}
