"""Stateful: an object whose attributes are its state, saved and loaded without further code.

    class Counter(Stateful):
        not_saved = ("_limit",)        # a setting: the constructor sets it, nothing changes it

        def __init__(self, limit: int) -> None:
            self._limit = limit
            self._count = 0            # state, because every other attribute is

Every attribute is saved unless `not_saved` names it, so a new one cannot be forgotten; the
constructor creates them all. A state holds only what JSON can hold, and loads to equal values:
tuples, deques, sets, arrays and mappings keep their types. Stateful objects may nest.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np


class Stateful:
    """Saves and loads all attributes of an object."""

    __slots__ = ()

    not_saved: ClassVar[tuple[str, ...]] = ()
    """Attributes that are no state: settings, and what is derived from them."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything the object remembers, as JSON values."""
        state = {}
        for name in self._saved():
            value = getattr(self, name)
            try:
                state[name] = value.state_dict() if isinstance(value, Stateful) else _encode(value)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}.{name}: {error}") from None
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the object that gave this state stopped."""
        names = set(self._saved())
        if names != state.keys():
            raise ValueError(
                f"the saved state of {type(self).__name__} does not match this version: "
                f"it lacks {sorted(names - state.keys())} "
                f"and has {sorted(state.keys() - names)} in addition"
            )
        for name, saved in state.items():
            part = getattr(self, name)
            if isinstance(part, Stateful):
                part.load_state_dict(saved)
            else:
                setattr(self, name, _decode(saved))

    def _saved(self) -> Iterator[str]:
        # A subclass adds to what its base classes leave out, it does not replace it.
        classes = type(self).__mro__
        skipped = {name for cls in classes for name in vars(cls).get("not_saved", ())}
        slots = (name for cls in reversed(classes) for name in vars(cls).get("__slots__", ()))
        for name in (*slots, *getattr(self, "__dict__", ())):
            if name not in skipped:
                yield name


Part = TypeVar("Part", bound=Stateful)


class StatefulDict(dict[str, Part], Stateful):
    """Stateful objects by name, each created when it is first asked for."""

    __slots__ = ("_create",)

    def __init__(self, create: Callable[[str], Part]) -> None:
        super().__init__()
        self._create = create

    def __missing__(self, name: str) -> Part:
        part = self[name] = self._create(name)
        return part

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each object."""
        return {name: part.state_dict() for name, part in self.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Create the objects that a state has, and load each."""
        self.clear()
        for name, saved in state.items():
            self[name].load_state_dict(saved)


def _encode(value: Any) -> Any:
    match value:
        case None | bool() | str():
            return value
        case np.ndarray():
            return {"array": value.tolist(), "dtype": value.dtype.name}
        case np.generic():
            return value.item()
        # An enum that is an int would come back as a plain number: refused below.
        case int() | float() if type(value) in (int, float):
            return value
        case list():
            return [_encode(part) for part in value]
        case tuple():
            return {"tuple": [_encode(part) for part in value]}
        case deque():
            return {"deque": [_encode(part) for part in value], "maxlen": value.maxlen}
        case set() | frozenset():
            return {type(value).__name__: [_encode(part) for part in value]}
        case dict():  # as pairs: keys may be numbers, which JSON would turn into strings
            return {"dict": [[_encode(key), _encode(part)] for key, part in value.items()]}
    raise TypeError(
        f"a {type(value).__name__} cannot be saved here: hold plain values, or a Stateful object "
        "that the constructor creates, or a StatefulDict, or name the attribute in `not_saved`"
    )


def _decode(saved: Any) -> Any:
    match saved:
        case list():
            return [_decode(value) for value in saved]
        case {"tuple": values}:
            return tuple(map(_decode, values))
        case {"deque": values, "maxlen": maxlen}:
            return deque(map(_decode, values), maxlen)
        case {"set": values}:
            return set(map(_decode, values))
        case {"frozenset": values}:
            return frozenset(map(_decode, values))
        case {"dict": pairs}:
            return {_decode(key): _decode(value) for key, value in pairs}
        case {"array": values, "dtype": dtype}:
            return np.array(values, dtype=dtype)
        case dict():
            raise ValueError("a saved object that the constructor does not create")
    return saved
