"""What is shipped, from where, and what happens when a sink fails or refuses."""

import math
import threading
from pathlib import Path

import pytest
from tests.integrations.runs import (
    BEGAN,
    KeepingSink,
    append,
    open_incident,
    ship,
    wait_until,
    write_run,
)
from tests.kit.observing import run_shipper

from trimtab.core.block import Block
from trimtab.core.config import ShipConfig
from trimtab.core.sink import RUN_STATUS, Refused, RunStatus
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.notes import read_notes
from trimtab.journal.writer import JournalLimits
from trimtab.observe.shipping import feed
from trimtab.observe.shipping.cursor import Cursor, lock_sink
from trimtab.observe.shipping.log import ShipLog
from trimtab.observe.shipping.shipper import Shipper


def test_a_run_is_sent_once_with_its_events_and_its_own_clock(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    first, second = KeepingSink(), KeepingSink()
    assert ship(run, first)
    assert ship(run, second)
    assert first.ticks() == list(range(30))
    assert first.clocks[7] == BEGAN + 0.7
    assert [kind for kind, _ in first.events] == ["incident", RUN_STATUS]
    assert first.finished == [RunStatus.ENDED]
    assert first.is_closed
    assert not second.points
    assert not second.events


def test_a_failure_is_repeated_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.observe.shipping.shipper.POLL_SECONDS", 0.05)
    attempts = []

    def fail_twice(block: Block) -> None:
        attempts.append(block)
        if len(attempts) <= 2:
            raise ConnectionError("down")

    run = write_run(tmp_path)
    sink = KeepingSink(fail_twice)
    assert ship(run, sink)
    assert sink.ticks() == list(range(30))
    log = (run.home / "ship" / "ship.log").read_text()
    assert log.count("cannot be reached: ConnectionError: down") == 1
    assert "can be reached again" in log


def test_a_shipper_that_stops_in_a_batch_sends_only_that_batch_again(tmp_path: Path) -> None:
    def stop_after_tick_600(block: Block) -> None:
        if len(block) and block.tick[-1] > 600:
            shipper.stop()
            raise ConnectionError("down")

    run = write_run(tmp_path, steps=1200)
    sink = KeepingSink(stop_after_tick_600)
    shipper = Shipper(run, [sink], ShipConfig(), ShipLog(run, None))
    assert not run_shipper(shipper, run)
    again = KeepingSink()
    assert ship(run, again)
    assert sink.ticks() + again.ticks() == list(range(1200))
    assert [kind for kind, _ in sink.events + again.events] == ["incident", RUN_STATUS]


def test_events_between_two_records_are_sent_once_whenever_the_shipper_stops(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path)
    seen: list[str] = []
    with JournalWriter(run) as journal:
        for number in range(4):
            journal.event(f"event {number}", 0)
            # The file of the position is all that one shipper leaves to the next.
            shipper = Shipper(
                run, [sink := KeepingSink()], ShipConfig(stall_seconds=1e9), ShipLog(run, None)
            )
            thread = threading.Thread(target=run_shipper, args=(shipper, run, 1e9))
            thread.start()
            wait_until(lambda sink=sink: bool(sink.events))  # type: ignore[misc]
            wait_until(lambda number=number: Cursor(run, "keeping").num_events >= 1)  # type: ignore[misc]
            shipper.stop()
            thread.join()
            seen += [kind for kind, _ in sink.events if kind != RUN_STATUS]
            if number == 1:
                append(journal, 0)
                wait_until(lambda: (run.journal / "00000000.log").stat().st_size > 300)
    assert seen == [f"event {number}" for number in range(4)]


def test_what_is_refused_is_split_noted_and_left_out_and_the_rest_arrives(tmp_path: Path) -> None:
    def refuse(block: Block) -> None:
        if "odd" in block.columns:
            raise Refused("no such name")
        if block.column("loss").nonfinite.any():
            raise Refused("no NaN")
        if any(event.kind == "incident" for event in block.events):
            raise Refused("no incidents")

    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        for step in range(30):
            append(journal, step, odd=1.0, **({"loss": math.nan} if step == 7 else {}))
        journal.event("incident", 30)
        journal.event("resume", 30)
    sink = KeepingSink(refuse)
    assert ship(run, sink, config=ShipConfig(every=1))
    assert sorted(sink.ticks()) == [tick for tick in range(30) if tick != 7]
    assert sorted(sink.ticks("lr")) == list(range(30))
    assert not sink.ticks("odd")
    assert "resume" in [kind for kind, _ in sink.events]
    assert Cursor(run, "keeping").num_refused == 30 + 1 + 1
    notes = [event.facts["text"] for event in read_notes(run)]
    assert len(notes) == 3
    assert any("'odd', which is left out from here on" in note for note in notes)


def test_other_signals_are_thinned_alike_wherever_the_shipper_starts(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        for step in range(1400):
            more = {"param_norm": 1.0}
            if step == 777:
                more["param_norm"] = math.inf
            if step % 10 == 3:
                more["slow"] = 2.0
            append(journal, step, **more)
    whole = KeepingSink()
    assert ship(run, whole)
    norms = whole.ticks("param_norm")
    assert norms == sorted([*range(0, 1400, 10), 777])
    assert whole.ticks("slow") == list(range(3, 1400, 10))
    assert [tick for tick, name, _ in whole.points if name == "nonfinite"] == [777]

    cursor = Cursor(run, "keeping")
    cursor.next_tick = 995
    cursor.save()
    rest = KeepingSink()
    assert ship(run, rest)
    assert rest.ticks("param_norm") == [tick for tick in norms if tick >= 995]


def test_a_sink_that_hangs_does_not_hold_the_others(tmp_path: Path) -> None:
    release = threading.Event()
    run = write_run(tmp_path)

    def hang(block: Block) -> None:
        release.wait(30)

    hanging = KeepingSink(hang)
    hanging.name = "hanging"
    sink = KeepingSink()
    shipper = Shipper(run, [hanging, sink], ShipConfig(), ShipLog(run, None))
    thread = threading.Thread(target=run_shipper, args=(shipper, run))
    thread.start()
    wait_until(lambda: bool(sink.finished))
    assert not hanging.points
    release.set()
    thread.join()
    assert hanging.finished


def test_two_shippers_of_the_same_sink_do_not_mix(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    lock = lock_sink(run, "keeping")
    assert not ship(run, sink := KeepingSink())
    assert not sink.points
    assert "by a different process" in (run.home / "ship" / "ship.log").read_text()
    lock.release()
    assert ship(run, sink)


def test_a_damaged_position_starts_from_the_first_record(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert ship(run, KeepingSink())
    (run.home / "ship" / "keeping.json").write_text("{")
    sink = KeepingSink()
    assert ship(run, sink)
    assert sink.ticks() == list(range(30))


def test_a_run_that_is_resumed_is_running_again(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert ship(run, KeepingSink())
    with JournalWriter(run) as journal:
        append(journal, 30)
        wait_until(lambda: any(run.journal.glob("*.log")))
        shipper = Shipper(
            run, [sink := KeepingSink()], ShipConfig(stall_seconds=1e9), ShipLog(run, None)
        )
        thread = threading.Thread(target=run_shipper, args=(shipper, run, 1e9))
        thread.start()
        wait_until(lambda: bool(sink.events))
    thread.join()
    assert sink.ticks() == [30]
    changes = [(facts["before"], facts["status"]) for _, facts in sink.events]
    assert changes == [("ended", "running"), ("running", "ended")]


def test_a_stalled_run_is_reported_and_so_is_its_return(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        append(journal, 0)  # its clock is in 2023
        shipper = Shipper(run, [sink := KeepingSink()], ShipConfig(), ShipLog(run, None))
        thread = threading.Thread(target=run_shipper, args=(shipper, run))
        thread.start()
        wait_until(lambda: len(sink.events) == 1)
        append(journal, 1, clock=4e9)
        wait_until(lambda: len(sink.events) == 2)
    thread.join()
    assert [facts["status"] for _, facts in sink.events] == ["stalled", "running", "ended"]


def test_a_long_journal_is_sent_in_pieces_with_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody writes a post-mortem here.
    monkeypatch.setattr("trimtab.observe.shipping.shipper.POSTMORTEM_SECONDS", 0.0)
    run = RunDirectory(tmp_path)
    with JournalWriter(run, JournalLimits(segment_records=50)) as journal:
        for step in range(1000):
            append(journal, step, param_norm=float(step))
            if step == 444:
                open_incident(journal, step)
    assert ship(run, at_once := KeepingSink())
    (run.home / "ship" / "keeping.json").unlink()
    longest = 0

    def on_send(block: Block) -> None:
        nonlocal longest
        longest = max(longest, len(block))

    monkeypatch.setattr(feed, "PIECE_RECORDS", 50)
    in_pieces = KeepingSink(on_send)
    in_pieces.needs_everything = True  # such a sink gets all that was read at once
    assert ship(run, in_pieces)
    assert sorted(in_pieces.points) == sorted(at_once.points)
    assert in_pieces.events == at_once.events
    assert in_pieces.finished == [RunStatus.ENDED]
    assert longest == 50
