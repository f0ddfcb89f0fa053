"""A disk that hangs or is full costs the training loop nothing but the records it counts."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from tests.kit.disks import CannotMount, Costs, disk_that_can_hang, hanging, small_disk
from tests.kit.journal_rows import wait_until

from trimtab.journal import JournalRun, JournalWriter, RunDirectory, read_journal
from trimtab.journal.writer import JournalLimits

CONFIG = JournalLimits(queue_records=500, segment_records=200, close_seconds=30)
SIGNALS = {f"signal {number}": 1 / (number + 3) for number in range(20)}


@contextmanager
def available(disk: AbstractContextManager[Path]) -> Iterator[Path]:
    try:
        place = disk.__enter__()
    except CannotMount as error:
        pytest.skip(f"no disk to play with: {error}")
    try:
        yield place
    finally:
        disk.__exit__(None, None, None)


def append_for(seconds: float, writer: JournalWriter, costs: Costs) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        costs.append(writer, len(costs.wall), SIGNALS)
        time.sleep(0.001)


def assert_cheap(costs: Costs) -> None:
    """Under a millisecond; one call in a hundred is left to the noise of a busy machine.

    Whoever waits for the disk waits for seconds. The benchmark looks at the largest value.
    """
    summary = costs.summary()
    assert summary["p99"] < 1.0, summary
    assert summary["mean"] < 0.1, summary
    assert summary["max"] < 200, f"that is no noise, that is waiting: {summary}"


def assert_accounted_for(reading: JournalRun, writer: JournalWriter, appended: int) -> None:
    assert reading.damage == ()
    assert reading.dropped == writer.dropped > 0
    assert len(reading.block) + reading.dropped == appended
    assert reading.block.tick[0] == 0
    assert reading.block.tick[-1] == appended - 1
    assert reading.ended == "closed"


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_disk_that_hangs(tmp_path: Path, seconds: float) -> None:
    with available(disk_that_can_hang(tmp_path)) as place:
        run = RunDirectory(place)
        before, during, after = Costs(), Costs(), Costs()
        with JournalWriter(run, CONFIG) as writer:
            append_for(0.5, writer, before)
            wait_until(lambda: len(read_journal(run).block) == len(before.wall))
            with hanging(place, longest=seconds + 60):
                append_for(seconds, writer, during)
                assert writer.dropped > 0
            # The loop comes round again before the disk does; from then on nothing is dropped.
            wait_until(lambda: len(read_journal(run).block) >= len(before.wall) + 500)
            dropped = writer.dropped
            append_for(0.5, writer, after)
            assert writer.dropped == dropped
        appended = len(before.wall) + len(during.wall) + len(after.wall)
        assert_accounted_for(read_journal(run), writer, appended)
        assert not list(run.journal.glob("*.log")), "it was sealed after all"
        assert_cheap(during)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with available(small_disk(tmp_path)) as place:
        run = RunDirectory(place)
        costs = Costs()
        ballast = place / "ballast"
        with JournalWriter(run, CONFIG) as writer:
            append_for(0.3, writer, costs)
            fill(ballast)
            append_for(3.0, writer, costs)
            assert isinstance(writer.error, OSError)
            assert writer.dropped > 0
            partial = read_journal(run)
            assert {damage.kind.value for damage in partial.damage} <= {"torn tail"}
            ballast.unlink()
            wait_until(lambda: len(read_journal(run).block) > len(partial.block))
            append_for(0.3, writer, costs)
        assert_accounted_for(read_journal(run), writer, len(costs.wall))
        assert_cheap(costs)


def test_closing_on_a_disk_that_hangs_comes_back(tmp_path: Path) -> None:
    with available(disk_that_can_hang(tmp_path)) as place:
        run = RunDirectory(place)
        writer = JournalWriter(run, JournalLimits(close_seconds=0.5))
        writer.append(0, SIGNALS)
        wait_until(lambda: len(read_journal(run).block) == 1)
        with hanging(place, longest=60):
            writer.append(1, SIGNALS)
            begin = time.monotonic()
            writer.close()
            assert time.monotonic() - begin < 5
            assert writer.error is not None
        wait_until(lambda: read_journal(run).ended == "closed")
        assert len(read_journal(run).block) == 2
        writer._thread.join(10)  # it still holds the disk that is to be unmounted
