"""What a guard makes a GPU do is counted, and docs/scale.md and the self-test have the count."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from tests.kit.device_work import Work, WorkCounting

OTHER = torch.device("meta")

COUNT = """
from tests.kit.device_work import PAGE, count, table, with_table
from trimtab.selftest.promises import PAPER_LAUNCHES
found, page = count(), PAGE.read_text(encoding="utf-8")
assert with_table(page, table(found.kinds)) == page, f"scripts/bench device_work: {found.kinds}"
assert found.launches == PAPER_LAUNCHES, f"scripts/bench device_work: {found.launches}"
"""


def count(make: Callable[[], object]) -> Work:
    counting = WorkCounting(OTHER)
    with counting:
        make()
    return counting.pop()


def test_views_and_allocations_launch_nothing() -> None:
    x = torch.zeros(4, 4, device=OTHER)
    assert count(lambda: x.view(16)[2:]) == Work(2, 0, 0, 0, 0)
    assert count(lambda: torch.empty(3, device=OTHER)).launches == 0
    assert count(lambda: torch.zeros(4)).operations == 0  # on the host


def test_bytes_are_those_that_are_read() -> None:
    x, y = torch.zeros(4, device=OTHER), torch.zeros(4, device=OTHER)
    assert count(lambda: x + y) == Work(1, 1, 32, 0, 0)
    assert count(lambda: x.copy_(y)) == Work(1, 1, 16, 0, 0)


@pytest.mark.parametrize(("non_blocking", "waits"), [(True, 0), (False, 1)])
def test_a_copy_from_the_host_waits_unless_it_is_asynchronous(
    non_blocking: bool, waits: int
) -> None:
    x, host = torch.zeros(4, device=OTHER), torch.zeros(4)
    assert count(lambda: x.copy_(host, non_blocking=non_blocking)).waits == waits


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="counted with torch 2.13")
def test_page_and_self_test_have_what_is_counted() -> None:
    """In a process of its own: torch registers a device for ever."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRIMTAB_OBSERVER": "off"}
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-2000:]
