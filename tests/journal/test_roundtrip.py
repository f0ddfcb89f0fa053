"""Whatever is written comes back bit by bit: from the open log, when sealed, and by following."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.journal_rows import Row, nothing_hides_in_gaps, row, rows_of, wait_until

from trimtab.core.block import Block, Event
from trimtab.core.jsonable import to_jsonable
from trimtab.core.signals import Quality
from trimtab.journal import Follower, JournalWriter, RunDirectory, read_journal
from trimtab.journal.writer import JournalLimits

names = st.sampled_from(["loss", "50 % off", 'quote"d', "\N{GREEK SMALL LETTER MU}"])
names |= st.text(max_size=6)
values = st.floats() | st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0, 5e-324])
int64 = st.integers(-(2**63), 2**63 - 1)
records = st.tuples(
    st.just("record"), int64, st.dictionaries(names, values, max_size=5), st.integers(0, 3), int64
)
facts = st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), values | st.text() | int64)
events = st.tuples(st.just("event"), st.text(max_size=6), int64, facts)
qualities = st.tuples(st.just("quality"), names, st.sampled_from(Quality))
journeys = st.lists(records | records | events | qualities, max_size=30)


class Expected:
    """What the journal should say after a journey."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.events: list[Event] = []
        self.qualities: dict[str, Quality] = {}

    def write(self, writer: JournalWriter, action: tuple[Any, ...]) -> None:
        match action:
            case ("record", step, signals, attempt, position):
                tick = writer.append(step, signals, attempt=attempt, data_position=position)
                assert tick == len(self.rows)
                self.rows[tick] = row(step, signals, attempt, position)
            case ("event", kind, step, told):
                told = {f"x_{name}": value for name, value in told.items()}
                writer.event(kind, step, **told)
                event = Event(kind=kind, tick=len(self.rows), step=step, facts=to_jsonable(told))
                self.events.append(event)
            case ("quality", name, quality):
                writer.quality(name, quality)
                worst = min(quality, self.qualities.get(name, Quality.RAW))
                if worst < Quality.RAW:
                    self.qualities[name] = worst

    def check(self, block: Block) -> None:
        assert rows_of(block) == self.rows
        assert list(block.events) == self.events
        assert block.qualities == self.qualities
        assert nothing_hides_in_gaps(block)


@contextmanager
def new_run() -> Iterator[RunDirectory]:
    with tempfile.TemporaryDirectory() as folder:
        yield RunDirectory(Path(folder))


@given(journey=journeys, segment_records=st.sampled_from([1, 3, 1000]), pause=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_every_bit_comes_back(
    journey: list[tuple[Any, ...]], segment_records: int, pause: int
) -> None:
    config = JournalLimits(segment_records=segment_records, flush_seconds=0.002)
    expected, followed = Expected(), []
    with new_run() as run, Follower(run) as follower:
        with JournalWriter(run, config) as writer:
            for number, action in enumerate(journey):
                expected.write(writer, action)
                if number == pause:
                    followed.append(follower.poll())

            def is_written() -> bool:
                followed.append(follower.poll())
                seen = Block.concat(followed)
                quality = followed[-1].qualities == expected.qualities
                return (len(seen), len(seen.events), quality) == (
                    len(expected.rows),
                    len(expected.events),
                    True,
                )

            wait_until(is_written)
            reading = read_journal(run)
            expected.check(reading.block)
            assert (reading.damage, reading.dropped, reading.ended) == ((), 0, None)
        assert writer.error is None
        reading = read_journal(run)
        expected.check(reading.block)
        assert (reading.damage, reading.dropped, reading.ended) == ((), 0, "closed")
        assert not list(run.journal.glob("*.log")), "a finished journal is all columns"
        followed.append(follower.poll())
        together = Block.concat(followed)
        assert rows_of(together) == expected.rows
        assert list(together.events) == expected.events
        assert (follower.damage, follower.ended) == ((), "closed")
        with Follower(run) as late:
            expected.check(late.poll())
            assert len(late.poll()) == 0


@given(journey=journeys, cut=st.integers(0, 30))
@settings(max_examples=20, deadline=None)
def test_a_journal_goes_on_after_a_restart(journey: list[tuple[Any, ...]], cut: int) -> None:
    expected = Expected()
    with new_run() as run:
        for part in (journey[:cut], journey[cut:]):
            with JournalWriter(run, JournalLimits(segment_records=4)) as writer:
                for action in part:
                    expected.write(writer, action)
        expected.check(read_journal(run).block)
