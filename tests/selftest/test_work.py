"""What a guard makes a GPU do is counted, and docs/limits.md and the self-test have the count."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from tests.kit.device_work import Work, WorkCounting

from trimtab.selftest.run import MODES

OTHER = torch.device("meta")

COUNT = """
import sys
from tests.kit.device_work import PAGE, count, table
from trimtab.selftest.promises import PAPER_LAUNCHES
found, page = count(sys.argv[1:]), PAGE.read_text(encoding="utf-8")
assert table(found.kinds).split("|\\n", 2)[2] in page, f"scripts/bench device_work: {found.kinds}"
assert found.launches.items() <= PAPER_LAUNCHES.items(), f"scripts/bench device_work: {found}"
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


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="counted with torch 2.13")
def test_page_and_self_test_have_what_is_counted() -> None:
    """In a new process: torch registers a device for ever, and before the first backward pass."""
    command = [sys.executable, "-c", COUNT, *MODES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
