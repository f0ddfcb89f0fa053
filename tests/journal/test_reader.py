"""Reading: damage is told, the future is kept, and nothing in the folder makes it crash."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.journal_rows import rows_of

from trimtab.core.errors import JournalError
from trimtab.core.signals import Quality
from trimtab.journal import (
    UNKNOWN_EVENT,
    Damage,
    DamageKind,
    Follower,
    JournalWriter,
    RunDirectory,
    read_journal,
)
from trimtab.journal.files import JournalFiles
from trimtab.journal.lines import Entry, encode_line
from trimtab.journal.writer import JournalLimits, seal_leftover

HEAD = {"kind": "segment", "note": 0, "schema": 1, "index": 0, "qualities": {}}


def record(tick: int, **more: Any) -> Entry:
    axes = {"kind": "record", "step": 10 * tick, "tick": tick, "attempt": 0, "position": -1}
    return axes | {"signals": {"loss": tick + 0.5}} | more


def write_log(run: RunDirectory, *entries: Entry, index: int = 0) -> Path:
    run.journal.mkdir(parents=True, exist_ok=True)
    path = run.journal / f"{index:08d}.log"
    path.write_bytes(b"".join(encode_line(entry) for entry in entries))
    return path


def write_journal(run: RunDirectory, records: int, segment_records: int = 10) -> None:
    config = JournalLimits(segment_records=segment_records, queue_records=10**6)
    with JournalWriter(run, config) as writer:
        for step in range(records):
            writer.append(step, {"loss": step / 7, "norm": -step})


def kinds(run: RunDirectory) -> list[DamageKind]:
    return [damage.kind for damage in read_journal(run).damage]


def told(damage: tuple[Damage, ...]) -> str:
    return "\n".join(found.sentence for found in damage)


def test_no_journal_is_an_empty_one(run: RunDirectory) -> None:
    reading = read_journal(run)
    assert (len(reading.block), reading.damage, reading.ended) == (0, (), None)
    run.journal.mkdir(parents=True)
    assert len(read_journal(run).block) == 0


def test_a_journal_that_is_no_folder_is_reported(run: RunDirectory) -> None:
    run.home.mkdir()
    run.journal.touch()
    with pytest.raises(JournalError, match="cannot be listed"):
        read_journal(run)


def test_foreign_files_are_left_alone(run: RunDirectory) -> None:
    write_journal(run, 25)
    for name in ("notes.txt", "0.log", "00000000.log.bak", ".00000001.seg.tmp", "core"):
        (run.journal / name).write_bytes(b"\x00\x01")
    (run.journal / "00000000").mkdir()
    reading = read_journal(run)
    assert (len(reading.block), reading.damage) == (25, ())


def test_a_folder_or_rubbish_under_our_names_is_reported(run: RunDirectory) -> None:
    write_journal(run, 25)
    (run.journal / "00000004.seg").mkdir()
    (run.journal / "00000005.seg").write_bytes(b"")
    (run.journal / "00000006.seg").write_bytes(b"rubbish" * 1000)
    (run.journal / "00000007.log").write_bytes(b"rubbish\n" * 1000)
    (run.journal / "00000008.log").mkdir()
    (run.journal / "99999999.log").touch()
    reading = read_journal(run)
    assert len(reading.block) == 25
    found = {damage.file: damage.kind for damage in reading.damage}
    for name in ("00000004.seg", "00000005.seg", "00000006.seg", "00000008.log"):
        assert found[name] is DamageKind.UNREADABLE
    assert found["00000007.log"] is DamageKind.DAMAGED_LINES
    assert found["00000003"] is DamageKind.MISSING_FILE
    with Follower(run) as follower:
        assert len(follower.poll()) == 25
        assert {damage.file for damage in follower.damage} == set(found) - {"00000003", "00000009"}
        with JournalWriter(run, JournalLimits()) as writer:
            assert writer.append(0, {}) == 25
        assert len(follower.poll()) == 1
    assert len(read_journal(run).block) == 26


def test_only_some_signals(run: RunDirectory) -> None:
    write_journal(run, 25)
    write_log(run, HEAD | {"index": 3}, record(25), index=3)
    block = read_journal(run, signals={"norm"}).block
    assert list(block.columns) == ["norm"]
    assert block.columns["norm"].present.tolist() == [True] * 25 + [False]
    assert read_journal(run, signals=[]).block.columns == {}


def test_progress_is_reported(run: RunDirectory) -> None:
    write_journal(run, 25)
    calls: list[tuple[int, int]] = []
    read_journal(run, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_unknown_lines_and_fields_are_kept_through_reading_and_sealing(run: RunDirectory) -> None:
    write_log(
        run,
        HEAD | {"host": "node7", "qualities": {"loss": "smoothed", "norm": "superb"}},
        record(0),
        {"kind": "weather", "note": 1, "rain": [1, 2, None]},
        record(1, mood="good"),
        {
            "kind": "event",
            "note": 2,
            "event": "back",
            "tick": 2,
            "step": 11,
            "facts": {},
            "by": 1,
        },
        record(2, signals={"loss": 2.5, "vector": [1.0, 2.0]}),
    )
    before = read_journal(run)
    seal_leftover(JournalFiles(run.journal), 0)
    after = read_journal(run)
    assert not list(run.journal.glob("*.log"))
    for reading in (before, after):
        assert reading.damage == ()
        unknown = [(e.tick, e.facts) for e in reading.block.events if e.kind == UNKNOWN_EVENT]
        assert sorted(unknown, key=str) == sorted(
            [
                (0, {"host": "node7", "qualities": {"loss": "smoothed", "norm": "superb"}}),
                (1, {"kind": "weather", "note": 1, "rain": [1, 2, None]}),
                (1, {"mood": "good"}),
                (2, {"by": 1}),
                (2, {"signals": {"vector": [1.0, 2.0]}}),
            ],
            key=str,
        )
        assert [e.kind for e in reading.block.events if e.kind != UNKNOWN_EVENT] == ["back"]
        assert reading.block.qualities == {"loss": Quality.SMOOTHED}
        assert rows_of(reading.block) == rows_of(before.block)


def test_a_newer_schema_is_read_as_far_as_understood(run: RunDirectory) -> None:
    write_log(run, HEAD | {"schema": 3}, record(0))
    for sealed in (False, True):
        if sealed:
            seal_leftover(JournalFiles(run.journal), 0)
        reading = read_journal(run)
        assert reading.schema == 3
        assert [damage.kind for damage in reading.damage] == [DamageKind.NEWER_SCHEMA]
        assert "schema 3 and this trimtab knows up to 1" in told(reading.damage)
        assert len(reading.block) == 1


def test_a_torn_tail_costs_the_line_and_is_reported_after_sealing_too(run: RunDirectory) -> None:
    path = write_log(run, HEAD, record(0), record(1))
    path.write_bytes(path.read_bytes()[:-20])
    for sealed in (False, True):
        if sealed:
            seal_leftover(JournalFiles(run.journal), 0)
        reading = read_journal(run)
        assert reading.block.tick.tolist() == [0]
        (damage,) = reading.damage
        assert damage.kind is DamageKind.TORN_TAIL
        assert damage.file == "00000000.log"
        assert "ends in an incomplete line of" in damage.sentence


def test_damaged_lines_cost_themselves(run: RunDirectory) -> None:
    path = write_log(run, HEAD, *(record(tick) for tick in range(9)))
    data = path.read_bytes()
    at = data.index(b'"tick":4')
    path.write_bytes(data[:at] + bytes(130) + data[at + 130 :])
    for sealed in (False, True):
        if sealed:
            seal_leftover(JournalFiles(run.journal), 0)
        reading = read_journal(run)
        assert reading.block.tick.tolist() == [0, 1, 2, 3, 6, 7, 8]
        assert [damage.kind for damage in reading.damage] == [
            DamageKind.DAMAGED_LINES,
            DamageKind.LOST_TICKS,
        ]
        assert reading.damage[1].ticks == (4, 5)
        assert "the 2 records of ticks 4 to 5 are lost" in told(reading.damage)


def test_a_copied_stretch_is_put_right(run: RunDirectory) -> None:
    event = {"kind": "event", "note": 1, "event": "x", "tick": 7, "step": 0, "facts": {}}
    lines = [HEAD, *(record(tick) for tick in range(7)), event, *map(record, range(7, 10))]
    write_log(run, *lines[:4], *lines[6:10], *lines[4:])
    reading = read_journal(run)
    assert reading.block.tick.tolist() == list(range(10))
    assert len(reading.block.events) == 1
    assert {damage.kind for damage in reading.damage} == {DamageKind.REPEATED}


def test_a_lost_event_line_is_reported_by_the_numbering(run: RunDirectory) -> None:
    write_log(run, HEAD, {"kind": "end", "note": 2, "how": "closed"})
    assert kinds(run) == [DamageKind.LOST_LINES]


def test_dropped_ticks_are_no_damage_and_others_are(run: RunDirectory) -> None:
    write_log(
        run,
        HEAD,
        record(2),
        {"kind": "dropped", "note": 1, "first_tick": 3, "count": 4, "notes": 0},
        record(9),
        {"kind": "dropped", "note": 2, "first_tick": 12, "count": 2, "notes": 0},
        {"kind": "dropped", "note": 3, "first_tick": 15, "count": 1, "notes": 0},
        record(18),
    )
    reading = read_journal(run)
    assert reading.dropped == 7
    lost = [damage.ticks for damage in reading.damage]
    assert lost == [(0, 1), (7, 8), (10, 11), (14, 14), (16, 17)]


def test_a_missing_file_is_reported(run: RunDirectory) -> None:
    write_journal(run, 40)
    (run.journal / "00000001.seg").unlink()
    reading = read_journal(run)
    assert reading.block.tick.tolist() == [*range(10), *range(20, 40)]
    assert [damage.kind for damage in reading.damage] == [
        DamageKind.MISSING_FILE,
        DamageKind.LOST_TICKS,
    ]


def test_a_file_that_exists_twice_is_read_once(run: RunDirectory) -> None:
    write_journal(run, 30)
    shutil.copy(run.journal / "00000000.seg", run.journal / "00000003.seg")
    reading = read_journal(run)
    assert reading.block.tick.tolist() == list(range(30))
    assert [damage.kind for damage in reading.damage] == [DamageKind.REPEATED]
    assert reading.damage[0].ticks == (0, 9)


def both_kinds(run: RunDirectory) -> Path:
    """A journal whose one file stands there sealed and as a log."""
    log = write_log(run, HEAD, *(record(tick) for tick in range(9)))
    data = log.read_bytes()
    seal_leftover(JournalFiles(run.journal), 0)
    log.write_bytes(data)
    return log


def test_a_log_that_outlived_its_sealing_changes_nothing(run: RunDirectory) -> None:
    both_kinds(run)
    reading = read_journal(run)
    assert (len(reading.block), reading.damage) == (9, ())
    JournalWriter(run).close()
    assert not (run.journal / "00000000.log").exists()
    assert len(read_journal(run).block) == 9


@pytest.mark.parametrize("spoil", ["a chunk", "both headers"])
def test_a_log_makes_up_for_a_damaged_sealed_file(run: RunDirectory, spoil: str) -> None:
    both_kinds(run)
    sealed = run.journal / "00000000.seg"
    data = bytearray(sealed.read_bytes())
    if spoil == "a chunk":
        at = data.index(np.float64(4.5).tobytes())
        data[at : at + 3] = b"???"
    else:
        data[30] ^= 1
        data[-60] ^= 1
    sealed.write_bytes(data)
    reading = read_journal(run)
    assert reading.block.columns["loss"].values.tolist() == [tick + 0.5 for tick in range(9)]
    assert reading.damage
    JournalWriter(run).close()
    reading = read_journal(run)
    assert (len(reading.block), reading.damage) == (9, ()), "the next writer seals it again"
    assert not (run.journal / "00000000.log").exists()


def test_two_damaged_halves_make_what_can_be_made(run: RunDirectory) -> None:
    log = both_kinds(run)
    sealed = run.journal / "00000000.seg"
    data = bytearray(sealed.read_bytes())
    data[data.index(np.float64(4.5).tobytes())] ^= 1
    sealed.write_bytes(data)
    log.write_bytes(log.read_bytes()[:-200])
    for again in (False, True):
        if again:
            JournalWriter(run).close()
        reading = read_journal(run)
        assert reading.block.tick.tolist() == list(range(9))
        assert reading.block.columns["loss"].present.sum() == 6, "what the log still holds"
        assert reading.damage
    assert log.exists(), "neither can replace the other, so both stay"


def test_a_follower_never_delivers_twice(run: RunDirectory) -> None:
    log = write_log(run, HEAD, record(0), record(1))
    with Follower(run) as follower:
        assert follower.poll().tick.tolist() == [0, 1]
        with log.open("ab") as file:
            file.write(encode_line(record(1)) + encode_line(record(2))[:-5])
        assert follower.poll().tick.tolist() == []
        with log.open("ab") as file:
            file.write(encode_line(record(2))[-5:])
        assert follower.poll().tick.tolist() == [2]
        write_log(run, HEAD | {"index": 1}, record(2), record(3), index=1)
        seal_leftover(JournalFiles(run.journal), 1)
        assert follower.poll().tick.tolist() == [3]
        assert len(follower.poll()) == 0
        assert follower.damage[0].kind is DamageKind.REPEATED


def test_a_program_that_ends_can_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A guard that was never closed writes its post-mortems after the last thread was started.
    run = RunDirectory(tmp_path)
    write_log(run, HEAD, record(0), record(1))
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    assert len(read_journal(run).block) == 2
