"""A follower in another process sees each record once, and within a second."""

import threading
import time

import pytest
from tests.kit.following import follow_a_writer
from tests.kit.journal_rows import rows_of, wait_until

from trimtab.core.block import Block
from trimtab.journal import DamageKind, Follower, JournalWriter, RunDirectory, read_journal
from trimtab.journal.writer import JournalLimits


@pytest.mark.parametrize("segment_records", [5, 100_000])
def test_each_record_comes_once_and_within_a_second(
    run: RunDirectory, segment_records: int
) -> None:
    written, seen = follow_a_writer(run, seconds=2.0, segment_records=segment_records)
    assert seen.ticks == list(range(written))
    assert (seen.dropped, seen.damage) == (0, 0)
    assert written > 100
    assert max(seen.latencies) < 1.0


def test_a_follower_that_sleeps_long_misses_nothing(run: RunDirectory) -> None:
    """Files come, are sealed and go while it sleeps: with one of them open in its hands."""
    blocks = []
    with Follower(run) as follower, JournalWriter(run, JournalLimits(segment_records=7)) as writer:
        for round_ in range(6):
            for step in range(round_ * 9):
                writer.append(step, {"loss": step})
            time.sleep(0.15)
            blocks.append(follower.poll())
        writer.event("done", 0)

        def is_done() -> bool:
            blocks.append(follower.poll())
            return any(event.kind == "done" for event in blocks[-1].events)

        wait_until(is_done)
    together = Block.concat(blocks)
    assert list(rows_of(together)) == list(range(9 * 15))
    assert follower.damage == ()


def test_a_follower_goes_on_when_the_writer_is_restarted(run: RunDirectory) -> None:
    with Follower(run) as follower:
        for attempt in range(3):
            with JournalWriter(run, JournalLimits(segment_records=4)) as writer:
                for step in range(10):
                    writer.append(step, {"loss": step}, attempt=attempt)
            block = follower.poll()
            assert block.tick.tolist() == list(range(10 * attempt, 10 * attempt + 10))
            assert follower.ended == "closed"


def test_reading_while_files_are_sealed_finds_every_one(run: RunDirectory) -> None:
    """A log may be sealed and gone between the listing and the opening: nothing may be missed."""
    stop = threading.Event()

    def write() -> None:
        with JournalWriter(run, JournalLimits(segment_records=10, flush_seconds=0.005)) as writer:
            while not stop.is_set():
                writer.append(0, {"loss": 1.0})
                time.sleep(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen, end = 0, time.monotonic() + 2
        while time.monotonic() < end:
            reading = read_journal(run)
            assert reading.block.tick.tolist() == list(range(len(reading.block)))
            assert {damage.kind for damage in reading.damage} <= {DamageKind.TORN_TAIL}
            assert len(reading.block) >= seen
            seen = len(reading.block)
    finally:
        stop.set()
        thread.join()
    assert seen > 50


def test_a_long_journal_can_be_followed_in_pieces(run: RunDirectory) -> None:
    with JournalWriter(run, JournalLimits(segment_records=10)) as writer:
        for step in range(95):
            writer.append(step, {"loss": float(step), "late": 1.0} if step > 50 else {"loss": step})
            if step == 33:
                writer.event("note", step)
    whole = Follower(run).poll()
    pieces = []
    with Follower(run) as follower:
        while True:
            pieces.append(follower.poll(20))
            if not follower.has_more:
                break
            assert len(pieces[-1]) == 20
    together = Block.concat(pieces)
    assert together.tick.tolist() == whole.tick.tolist() == list(range(95))
    assert together.events == whole.events
    for name in ("loss", "late"):
        assert together.column(name).present.tolist() == whole.column(name).present.tolist()
    assert follower.ended == "closed"
    assert len(follower.poll(20)) == 0
