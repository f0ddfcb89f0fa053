"""Marks: what each test needs, by its place; a file itself marks only what is slow."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.cases import examples
from tests.kit.rooms import is_wanted, kind_of, rooms_of

HERE = Path(__file__).parent

# A machine with other work is no failure of an example.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

# A process for each watched run would double the time of the suite; a test that is about the
# observer asks for it (tests/kit/observing.py).
os.environ["TRIMTAB_OBSERVER"] = "off"

ROOMS = pytest.StashKey[frozenset[str] | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rooms",
        help="only these tests: pure, torch, trainers, a folder such as live, or changed for the "
        "folders of files that differ from main; separated by commas",
    )


def pytest_configure(config: pytest.Config) -> None:
    names = config.getoption("--rooms")
    config.stash[ROOMS] = rooms_of(names) if names else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out before they are imported: torch and the trainers take seconds each."""
    rooms = config.stash[ROOMS]
    if rooms is None or collection_path.suffix != ".py" or HERE not in collection_path.parents:
        return None
    return None if is_wanted(collection_path.relative_to(HERE).as_posix(), rooms) else True


def pytest_collection_finish() -> None:
    """Take what is there before the first test out of the garbage collector's way.

    With torch, the trainers and thousands of tests a full collection takes over a second.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(kind_of(item.path.relative_to(HERE).as_posix()))
            # Processes that talk by gloo are started by this function alone (tests/kit/ranks.py).
            if hasattr(getattr(item, "module", None), "run_ranks"):
                item.add_marker("ranks")
