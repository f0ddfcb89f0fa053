"""The way in: ticks, restarts, one writer at a time, and no harm to the caller."""

import errno
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.kit import forked
from tests.kit.journal_rows import row, rows_of, wait_until
from tests.kit.synthetic import falling_loss

from trimtab.core.errors import JournalError
from trimtab.core.signals import Quality
from trimtab.diagnosis import diagnose
from trimtab.journal import Follower, JournalWriter, RunDirectory, read_journal
from trimtab.journal import writer as writer_module
from trimtab.journal.files import JournalFiles
from trimtab.journal.writer import JournalLimits, OpenSegment

QUICK = JournalLimits(flush_seconds=0.005, segment_records=10)


def written(run: RunDirectory) -> int:
    return len(read_journal(run).block)


def test_ticks_rise_while_steps_go_back(run: RunDirectory) -> None:
    with JournalWriter(run, QUICK) as writer:
        assert [writer.append(step, {"loss": 1.0}) for step in (5, 6, 7)] == [0, 1, 2]
        assert writer.append(5, {"loss": 2.0}, attempt=1, data_position=99) == 3
    block = read_journal(run).block
    assert block.step.tolist() == [5, 6, 7, 5]
    assert block.tick.tolist() == [0, 1, 2, 3]
    assert block.attempt.tolist() == [0, 0, 0, 1]
    assert block.data_position.tolist() == [-1, -1, -1, 99]


def test_a_restart_goes_on_in_a_new_file(run: RunDirectory) -> None:
    for start in (0, 25, 50):
        with JournalWriter(run, QUICK) as writer:
            assert [writer.append(step, {"loss": step}) for step in range(25)] == list(
                range(start, start + 25)
            )
            writer.quality("loss", Quality.SMOOTHED)
    files = sorted(path.name for path in run.journal.iterdir())
    assert files == [f"{index:08d}.seg" for index in range(9)]
    reading = read_journal(run)
    assert reading.block.tick.tolist() == list(range(75))
    assert reading.block.qualities == {"loss": Quality.SMOOTHED}
    assert reading.ended == "closed"


def test_ticks_that_were_dropped_are_not_given_again(run: RunDirectory) -> None:
    run.journal.mkdir(parents=True)
    log = OpenSegment(JournalFiles(run.journal), 0, {})
    log.add({"kind": "dropped", "first_tick": 0, "count": 7, "notes": 0})
    log.flush()
    log.close()
    with JournalWriter(run) as writer:
        assert writer.append(0, {}) == 7
    reading = read_journal(run)
    assert (reading.dropped, reading.damage) == (7, ())


def test_the_caller_may_change_what_it_gave(run: RunDirectory) -> None:
    signals = {"loss": 1.0}
    with JournalWriter(run, QUICK) as writer:
        writer.append(0, signals)
        signals["loss"] = 2.0
        writer.append(np.int64(1), {"loss": np.float32(0.1), "n": np.int32(3)})  # type: ignore
    rows = rows_of(read_journal(run).block)
    assert rows[0] == row(0, {"loss": 1.0})
    assert rows[1] == row(1, {"loss": float(np.float32(0.1)), "n": 3.0})


def test_a_step_that_fits_no_column_is_refused_at_once(run: RunDirectory) -> None:
    with JournalWriter(run, QUICK) as writer:
        with pytest.raises(JournalError, match="64-bit integers, got 9223372036854775808"):
            writer.append(2**63, {})
        with pytest.raises(TypeError):
            writer.append(0, {"loss": None})  # type: ignore[dict-item]
        with pytest.raises(JournalError, match=r"'journal\.mine'"):
            writer.event("journal.mine", 0)
        assert writer.append(0, {}) == 0, "a refused record takes no tick"


def test_only_the_worst_quality_is_kept(run: RunDirectory) -> None:
    with JournalWriter(run, QUICK) as writer:
        writer.quality("a", Quality.RAW)
        writer.quality("b", Quality.POST_CLIP)
        writer.quality("b", Quality.SMOOTHED)
    assert read_journal(run).block.qualities == {"b": Quality.POST_CLIP}


def test_the_journal_says_how_the_run_ended(run: RunDirectory) -> None:
    with pytest.raises(ZeroDivisionError), JournalWriter(run, QUICK):
        raise ZeroDivisionError
    assert read_journal(run).ended == "raised ZeroDivisionError"
    writer = JournalWriter(run, QUICK)
    writer.append(0, {})
    wait_until(lambda: written(run) == 1)
    journal = read_journal(run)
    assert journal.ended is None, "it runs again"
    assert not journal.notes
    writer.close("SIGTERM")
    writer.close("again")
    assert read_journal(run).ended == "SIGTERM"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (RuntimeError, "No incident, but the run raised RuntimeError after step 99."),
        (KeyboardInterrupt, "Healthy: no incident in 100 records."),
    ],
)
def test_a_run_that_an_error_ended_is_not_called_healthy(
    run: RunDirectory, error: type[BaseException], verdict: str
) -> None:
    writer = JournalWriter(run, QUICK)
    for step, loss in enumerate(falling_loss(100).tolist()):
        writer.append(step, {"loss": loss})
    with pytest.raises(error), writer:
        raise error
    assert diagnose(run.root).verdict == verdict


def test_what_comes_after_closing_is_counted(run: RunDirectory) -> None:
    writer = JournalWriter(run, QUICK)
    writer.close()
    assert writer.append(0, {"loss": 1.0}) == 0
    writer.event("late", 0)
    assert writer.dropped == 1
    assert written(run) == 0


def test_a_second_writer_is_refused(run: RunDirectory) -> None:
    with (
        JournalWriter(run, QUICK),
        pytest.raises(JournalError, match="is being written by this process; close that writer"),
    ):
        JournalWriter(run, QUICK)
    JournalWriter(run, QUICK).close()


def test_a_dead_owner_does_not_block(run: RunDirectory) -> None:
    # It leaves behind a child of its own, as a killed trainer leaves the workers of its loader.
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from trimtab.journal import JournalWriter, RunDirectory\n"
        "writer = JournalWriter(RunDirectory(Path(sys.argv[1])))\n"
        "if os.fork() == 0:\n"
        "    for _ in range(9): writer.append(0, {})\n"
        "    writer.close()\n"
        "    print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = forked.Forked(["-c", script, str(run.root)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        with pytest.raises(JournalError, match=f"pid {owner.pid} "):
            JournalWriter(run)
        owner.kill()
        owner.wait()
        JournalWriter(run).close()
        assert written(run) == 0, "a forked child writes nothing"
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"cannot be written: .*; check the path"):
        JournalWriter(RunDirectory(tmp_path / "file"))


def test_records_from_many_threads_have_a_tick_each(run: RunDirectory) -> None:
    with JournalWriter(run, JournalLimits(queue_records=10_000)) as writer:
        ticks: list[list[int]] = [[] for _ in range(4)]

        def work(mine: list[int]) -> None:
            mine.extend(writer.append(0, {"loss": 1.0}) for _ in range(500))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in ticks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(tick for mine in ticks for tick in mine) == list(range(2000))
    assert written(run) == 2000


def test_an_error_of_our_own_is_remembered_and_harmless(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(run, QUICK)
    writer.append(0, {"loss": 1.0})
    wait_until(lambda: written(run) == 1)
    monkeypatch.setattr(OpenSegment, "add", lambda *_: 1 / 0)
    writer.append(1, {"loss": 2.0})
    wait_until(lambda: writer.error is not None)
    assert isinstance(writer.error, ZeroDivisionError)
    for step in range(2, 10):
        assert writer.append(step, {"loss": 2.0}) == step
    assert writer.dropped >= 8
    writer.close()
    assert written(run) == 1


def test_a_log_that_cannot_be_sealed_stays_and_is_sealed_next_time(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "write_segment", fail)
        with JournalWriter(run, QUICK) as writer:
            for step in range(35):
                writer.append(step, {"loss": step})
        assert isinstance(writer.error, OSError)
    assert len(list(run.journal.glob("*.log"))) == 4
    assert written(run) == 35
    JournalWriter(run, QUICK).close()
    assert len(list(run.journal.glob("*.seg"))) == 5
    assert not list(run.journal.glob("*.log"))
    assert written(run) == 35


def test_a_sealed_file_is_proven_before_the_log_goes(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.journal.sealed_segment.SealedSegment.is_whole", lambda _: False)
    with JournalWriter(run, QUICK) as writer:
        writer.append(0, {"loss": 1.0})
    assert isinstance(writer.error, JournalError)
    assert [path.name for path in run.journal.iterdir()] == ["00000000.log"]
    assert written(run) == 1


def test_a_short_write_and_an_error_leave_the_file_whole(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.write, [0]

    def moody(descriptor: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] in (2, 5, 6):
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, bytes(data[: 1 + len(data) // 3]))

    monkeypatch.setattr("trimtab.journal.writer.os.write", moody)
    with JournalWriter(run, QUICK) as writer:
        for step in range(25):
            writer.append(step, {"loss": step})
    reading = read_journal(run)
    assert (len(reading.block), reading.damage, reading.dropped) == (25, (), 0)
    assert isinstance(writer.error, OSError)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that hangs until the gate is opened."""
    real, gate = os.write, threading.Event()

    def hanging(descriptor: int, data: bytes) -> int:
        gate.wait()
        return real(descriptor, data)

    monkeypatch.setattr("trimtab.journal.writer.os.write", hanging)
    return gate


def test_what_does_not_fit_the_queue_is_dropped_counted_and_reported(
    run: RunDirectory, gate: threading.Event
) -> None:
    config = JournalLimits(flush_seconds=0.005, queue_records=10, close_seconds=30)
    with Follower(run) as follower, JournalWriter(run, config) as writer:
        writer.append(0, {"loss": 0.0})
        time.sleep(0.1)  # the thread has taken it and hangs
        for step in range(1, 51):
            assert writer.append(step, {"loss": step}) == step
        assert writer.dropped == 40
        writer.event("resume", 51)
        gate.set()
        wait_until(lambda: written(run) == 11)
        assert writer.append(51, {"loss": 51.0}) == 51
        wait_until(lambda: follower.poll().tick.tolist()[-1:] == [51])
        assert follower.dropped == 40
    reading = read_journal(run)
    assert reading.block.tick.tolist() == [*range(11), 51]
    assert (reading.dropped, reading.damage) == (40, ())
    assert [event.kind for event in reading.block.events] == ["resume"]


def test_notes_are_bounded_too(run: RunDirectory, gate: threading.Event) -> None:
    with JournalWriter(run, JournalLimits(flush_seconds=0.005, queue_records=1)) as writer:
        writer.append(0, {})
        time.sleep(0.1)
        for step in range(5000):
            writer.event("flood", step)
        gate.set()
    assert 1000 < len(read_journal(run).block.events) < 1100


def test_closing_gives_up_on_a_disk_that_does_not_answer(
    run: RunDirectory, gate: threading.Event
) -> None:
    writer = JournalWriter(run, JournalLimits(flush_seconds=0.005, close_seconds=0.3))
    writer.append(0, {"loss": 1.0})
    begin = time.monotonic()
    writer.close()
    assert 0.2 < time.monotonic() - begin < 5
    assert isinstance(writer.error, JournalError)
    assert "did not answer for 0.3 s" in str(writer.error)
    with pytest.raises(JournalError, match="being written"):
        JournalWriter(run)
    gate.set()  # the disk is back: the thread finishes what it was asked for
    wait_until(lambda: read_journal(run).ended == "closed")
    assert written(run) == 1


def test_closing_gives_up_on_a_disk_that_refuses(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trimtab.journal.writer.os.write", full)
    writer = JournalWriter(run, JournalLimits(flush_seconds=0.005, close_seconds=0.3))
    writer.append(0, {"loss": 1.0})
    begin = time.monotonic()
    writer.close()
    assert time.monotonic() - begin < 5
    assert isinstance(writer.error, OSError)
    assert written(run) == 0
    monkeypatch.undo()
    with JournalWriter(run, QUICK) as writer:
        assert writer.append(0, {"loss": 1.0}) == 0
    assert read_journal(run).damage == ()


def test_a_file_system_without_locks_is_written_all_the_same(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("trimtab.journal.files.fcntl.flock", no_locks)
    with JournalWriter(run, QUICK) as writer:
        writer.append(0, {"loss": 1.0})
    assert (written(run), writer.error) == (1, None)
