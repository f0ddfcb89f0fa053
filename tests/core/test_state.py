"""Objects whose attributes are their state."""

import copy
import json
from collections import deque
from typing import Any

import numpy as np
import pytest

from trimtab.core.state import Stateful, StatefulDict


class Inner(Stateful):
    __slots__ = ("_limit", "total")
    not_saved = ("_limit",)

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.total = 0.0


def new_inner(name: str) -> Inner:
    return Inner(float(len(name)))


class Outer(Stateful):
    not_saved = ("config",)

    def __init__(self) -> None:
        self.config = object()
        self.values: Any = None
        self.inner = Inner(1.0)
        self.parts = StatefulDict(new_inner)


VALUES = [
    None,
    True,
    3,
    0.1,
    float("inf"),
    "text",
    [1, [2.5, None]],
    (1, (2.0, "x")),
    deque([(1, 2.0), (3, 4.0)], maxlen=5),
    [deque([1.0], maxlen=1), deque([2.0])],
    {1: (2.0, None), 0.5: [3]},
    {"name": {"nested": True}},
    {2, 3},
    frozenset({"a"}),
]


def through_json(one: Outer) -> Outer:
    other = Outer()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    return other


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    one = Outer()
    one.values = value
    loaded = through_json(one).values
    assert repr(loaded) == repr(value)
    assert type(loaded) is type(value)


def test_arrays_and_numpy_numbers_come_back() -> None:
    one = Outer()
    one.values = [np.float64(0.1), np.int64(3)]
    assert through_json(one).values == [0.1, 3]
    one.values = np.arange(3, dtype=np.int64)
    loaded = through_json(one).values
    assert loaded.dtype == np.int64
    np.testing.assert_array_equal(loaded, one.values)


def test_objects_and_parts_are_loaded_in_place_and_settings_stay() -> None:
    one = Outer()
    one.inner.total = 2.0
    one.parts["first"].total = 7.0
    other = Outer()
    other.parts["not in the state"].total = 1.0
    config, inner = other.config, other.inner
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert (other.inner.total, other.config, other.inner) == (2.0, config, inner)
    assert {name: part.total for name, part in other.parts.items()} == {"first": 7.0}
    assert other.parts["first"]._limit == 5.0


def test_a_copy_is_independent() -> None:
    one = Outer()
    one.parts["first"].total = 1.0
    other = copy.deepcopy(one)
    other.parts["first"].total = 2.0
    other.parts["second"].total = 3.0
    assert one.state_dict()["parts"] == {"first": {"total": 1.0}}


@pytest.mark.parametrize("value", [object(), [Inner(1.0)], {"x": Inner(1.0)}, lambda: 0])
def test_what_cannot_be_saved_is_named(value: Any) -> None:
    one = Outer()
    one.values = value
    with pytest.raises(TypeError, match=r"Outer\.values: a \w+ cannot be saved"):
        one.state_dict()


def test_an_object_that_the_constructor_does_not_create_cannot_be_loaded() -> None:
    one = Outer()
    one.values = Inner(1.0)
    with pytest.raises(ValueError, match="constructor"):
        through_json(one)


def test_a_state_of_a_different_version_is_refused() -> None:
    state = Outer().state_dict()
    state["renamed"] = state.pop("values")
    with pytest.raises(ValueError, match=r"lacks \['values'\] and has \['renamed'\]"):
        Outer().load_state_dict(state)
