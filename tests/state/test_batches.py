"""Batches of any nesting keep their types, and their attributes where a copy can."""

from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from trimtab.state.batches import map_tensors, num_rows, tensors_in


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


@dataclass(frozen=True)
class Frozen:
    ids: torch.Tensor
    name: str = "a"


class Encoding(UserDict[str, Any]):
    """Like the BatchEncoding of transformers: what it was made from is an attribute."""

    encodings = "none"


class Output(OrderedDict[str, Any]):
    """Like the ModelOutput of transformers, which refuses updates."""

    def update(self, *given: Any, **named: Any) -> None:
        raise Exception("update is not supported")


class Held(Mapping[str, Any]):
    """A mapping that would share what it holds with a copy of itself."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def test_tensors_are_changed_in_any_nesting_and_the_batch_is_kept() -> None:
    batch = {"a": Pair(torch.ones(2), torch.zeros(2)), "b": [torch.ones(2), "text"], "c": 3}
    doubled = map_tensors(batch, lambda tensor: 2 * tensor)
    assert doubled["a"].one.tolist() == [2, 2]
    assert doubled["b"][1] == "text"
    assert doubled["c"] == 3
    assert batch["b"][0].tolist() == [1, 1]  # type: ignore[index]
    assert len(tensors_in(batch)) == 3


@pytest.mark.parametrize("kind", [dict, OrderedDict, Encoding, Output, Held])
def test_a_mapping_keeps_its_type_and_the_given_one_its_tensors(kind: Any) -> None:
    batch = kind({"ids": torch.ones(2)})
    doubled = map_tensors(batch, lambda tensor: 2 * tensor)
    assert type(doubled) is kind
    assert (doubled["ids"].tolist(), batch["ids"].tolist()) == ([2, 2], [1, 1])


def test_attributes_of_a_mapping_and_of_a_dataclass_are_kept() -> None:
    encoding = Encoding({"ids": torch.ones(2)})
    encoding.encodings = "words"
    assert map_tensors(encoding, torch.neg).encodings == "words"
    assert map_tensors(defaultdict(list, ids=torch.ones(2)), torch.neg)["absent"] == []
    changed = map_tensors(Frozen(torch.ones(2), "b"), torch.neg)
    assert (changed.ids.tolist(), changed.name) == ([-1, -1], "b")


def test_rows_are_what_most_tensors_have_or_all_of_them() -> None:
    batch = (torch.zeros(4, 2), torch.zeros(4), torch.zeros(3), torch.zeros(()))
    assert num_rows(batch) == 4
    assert num_rows(batch, of_all=True) == 0
    assert num_rows(batch[:2], of_all=True) == 4
    assert num_rows("text") == num_rows([], of_all=True) == 0
