"""A Python type as JSON Schema: of the values that `core.jsonable.to_jsonable` makes from it."""

import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, IntEnum
from inspect import getdoc
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Schema = dict[str, Any]

NUMBER: Schema = {
    "description": "A number; NaN and the infinities are strings, as JSON has none.",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}
_PLAIN = {str: "string", int: "integer", bool: "boolean", types.NoneType: "null"}


class Definitions:
    """The schemas of named types, each written once and referred to by name."""

    def __init__(
        self,
        *,
        left_out: Mapping[type, Collection[str]],
        added: Mapping[type, Mapping[str, Any]],
        printed_as: Mapping[type, Any],
    ) -> None:
        """Fields that a type is printed without or with, and types that are printed as another."""
        self._left_out, self._added, self._printed_as = left_out, added, printed_as
        self._types: dict[str, Any] = {}
        self.schemas: dict[str, Schema] = {"number": NUMBER}

    def schema_of(self, kind: Any) -> Schema:
        """The schema of a type; raises TypeError if JSON has nothing like it."""
        kind = self._printed_as.get(kind, kind) if isinstance(kind, type) else kind
        if kind is Any:
            return {}
        if kind is float:
            return {"$ref": "#/$defs/number"}
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if is_typeddict(kind) or dataclasses.is_dataclass(kind):
            return self._named(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            names = [one.name.lower() if issubclass(kind, IntEnum) else one.value for one in kind]
            return {"enum": names}
        return self._generic(get_origin(kind), get_args(kind), kind)

    def _generic(self, origin: Any, arguments: tuple[Any, ...], kind: Any) -> Schema:
        if origin in (Union, types.UnionType):
            return {"anyOf": _each_once([self.schema_of(one) for one in arguments])}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Required, NotRequired):
            return self.schema_of(arguments[0])
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.schema_of(arguments[1])}
        if origin is tuple and arguments[-1] is not Ellipsis:
            items = [self.schema_of(one) for one in arguments]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if isinstance(origin, type) and issubclass(origin, Sequence | set | frozenset):
            return {"type": "array", "items": self.schema_of(arguments[0])}
        raise TypeError(f"no JSON Schema for {kind}")

    def _named(self, kind: Any) -> Schema:
        name = kind.__name__
        if self._types.setdefault(name, kind) is not kind:
            raise TypeError(f"two types with the name {name}: {kind}, {self._types[name]}")
        if name not in self.schemas:
            self.schemas[name] = {}  # a type may hold itself
            self.schemas[name] = self._object(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, kind: Any) -> Schema:
        hints = get_type_hints(kind, include_extras=True)
        if dataclasses.is_dataclass(kind):
            hints = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
        left_out = self._left_out.get(kind, ())
        hints = {name: hint for name, hint in hints.items() if name not in left_out}
        hints |= self._added.get(kind, {})
        required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
        # Further properties are allowed: a later version may add some.
        return {
            "description": (getdoc(kind) or "").split("\n")[0],
            "type": "object",
            "properties": {name: self.schema_of(hint) for name, hint in hints.items()},
            "required": required,
        }


def _each_once(schemas: list[Schema]) -> list[Schema]:
    return [one for place, one in enumerate(schemas) if one not in schemas[:place]]
