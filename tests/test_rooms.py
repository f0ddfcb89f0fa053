"""The rooms of the tests: which test needs what, and which belong to a change."""

import subprocess
import sys
from itertools import product

import pytest

from tests.kit.cases import one_of_each
from tests.kit.rooms import (
    KINDS,
    PURE,
    ROOT,
    TORCH,
    TRAINERS,
    is_wanted,
    kind_of,
    room_of,
    rooms_of,
)

TESTS = ROOT / "tests"


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("core/test_block.py", PURE),
        ("checks/test_rules.py", PURE),
        ("checks/objects/test_faults.py", TORCH),
        ("integrations/hf/test_ranks.py", TRAINERS),
        ("integrations/alerts/test_channels.py", PURE),
        ("test_docs.py", PURE),
    ],
)
def test_the_longest_beginning_of_a_path_decides(place: str, kind: str) -> None:
    assert kind_of(place) == kind
    assert is_wanted(place, {kind})


def test_a_room_is_a_kind_a_folder_or_a_file() -> None:
    assert is_wanted("live/recover/test_ranks.py", {PURE, "live"})
    assert is_wanted("test_examples.py", {"test_examples.py"})
    assert not is_wanted("live/recover/test_ranks.py", {PURE, "state", "live/loops"})


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("src/trimtab/live/loop/rank_orders.py", "live"),
        ("src/trimtab/judge.py", "test_judge.py"),
        ("tests/state/test_exact.py", "state"),
        ("tests/test_docs.py", "test_docs.py"),
        ("tests/kit/tiny.py", None),
        ("docs/check.md", None),
    ],
)
def test_a_changed_file_asks_for_the_tests_of_its_folder(path: str, room: str | None) -> None:
    assert room_of(path) == room


def test_changed_rooms_are_added_to_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = ["src/trimtab/state/ring.py", "docs/check.md"]
    monkeypatch.setattr("tests.kit.rooms.changed_files", lambda: changed)
    assert rooms_of("pure, changed") == {PURE, "state"}


def test_every_place_that_is_named_exists() -> None:
    assert [start for start in KINDS if not (TESTS / start).exists()] == []


def test_pure_tests_are_imported_without_torch() -> None:
    places = [path.relative_to(TESTS).as_posix() for path in sorted(TESTS.rglob("test_*.py"))]
    names = [
        "tests." + place.removesuffix(".py").replace("/", ".")
        for place in places
        if kind_of(place) == PURE
    ]
    script = (
        "import importlib, sys\n"
        "from _pytest.outcomes import Skipped\n"
        "sys.modules['torch'] = None\n"  # any import of torch now raises
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name)\n"
        "    except Skipped: pass\n"
    )
    subprocess.run([sys.executable, "-c", script, *names], cwd=ROOT, check=True)


def test_one_of_each_keeps_every_value_of_a_product_once_and_marks_the_others_slow() -> None:
    kept = [case.values for case in one_of_each(product("abc", (1, 2))) if not case.marks]
    assert kept == [("a", 1), ("b", 2), ("c", 1)]


def test_one_of_each_by_kinds_of_its_own() -> None:
    cases = one_of_each(range(6), lambda number: (number % 2,))
    assert [case.values[0] for case in cases if not case.marks] == [0, 1]
    assert [case.values[0] for case in cases] == [0, 1, 2, 3, 4, 5]
