"""Events of the user: any fact is journalled in a short form, or costs only itself."""

import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import journal_of
from torch import nn

import trimtab
from trimtab.core.jsonable import to_jsonable
from trimtab.live.measure.user_events import MAX_TEXT, MAX_VALUES, plain_event


class Color(Enum):
    RED = "red"


class Hostile(dict):  # type: ignore[type-arg]
    """Raises whatever is asked."""

    def items(self) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


def held_by_itself() -> dict[str, Any]:
    held: dict[str, Any] = {}
    held["held"] = held
    return held


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(5000):
        found = [found]
    return found


FACTS = {
    "step": (5, 5),
    "kind": ("x", "x"),
    "self": (True, True),
    "minus": (float("-inf"), float("-inf")),
    "model": (nn.Linear(2, 2), "<Linear>"),
    "scalar": (torch.tensor(2.5), 2.5),
    "tensor": (torch.ones(3, 2), "<Tensor of float32 [3, 2]>"),
    "elsewhere": (torch.ones((), device="meta"), "<Tensor of float32 []>"),
    "bytes": (b"x" * 10_000, "<10,000 bytes>"),
    "color": (Color.RED, "red"),
    "path": (Path("a/b"), "a/b"),
    "large": (10**6000, "<int>"),
    "hostile": (Hostile(), "<Hostile>"),
    "object": (object(), "<object>"),
    "list": ([1, {"a": (2, None)}], [1, {"a": [2, None]}]),
}


def test_facts_of_any_kind_are_written(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for name, (given, _) in FACTS.items():
            guard.event("evaluation", **{name: given})
        for _ in range(5):
            guard.record(loss=model(torch.ones(2)).sum())
            optimizer.step()
        assert not guard._monitor.shields.failed  # type: ignore[union-attr]
    block = journal_of(tmp_path)
    found = [event.facts for event in block.events if event.kind == "evaluation"]
    assert found == [{name: to_jsonable(expected)} for name, (_, expected) in FACTS.items()]
    assert len(block) == 5


@pytest.mark.parametrize(
    ("kind", "name"),
    [("journal.mine", "journal mine"), (5, "5"), (nn.Linear(1, 1), "<Linear>")],
)
def test_names_of_any_kind_are_written(kind: Any, name: str) -> None:
    assert plain_event(kind, {})[0] == name


@pytest.mark.parametrize(
    "fact",
    [
        "x" * 10_000_000,
        list(range(1_000_000)),
        {str(number): [number] * 100 for number in range(1000)},
        {"x" * 100_000: 1},
        held_by_itself(),
        deep(),
    ],
    ids=["text", "list", "dicts", "key", "itself", "deep"],
)
def test_no_event_is_large(fact: Any) -> None:
    name, facts = plain_event("x" * 10_000, {"fact": fact})
    assert len(name) < 2 * MAX_TEXT
    assert len(json.dumps(facts)) < 20 * MAX_VALUES + 2 * MAX_TEXT


def test_the_name_may_be_given_by_keyword(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with trimtab.watch(
        model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path
    ) as guard:
        guard.event(kind="evaluation", loss=1.0)
        guard.event("evaluation", kind="second")
    found = [e.facts for e in journal_of(tmp_path).events if e.kind == "evaluation"]
    assert found == [{"loss": 1.0}, {"kind": "second"}]
