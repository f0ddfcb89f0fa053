"""What a run adds up to as its journal grows."""

from trimtab.core import signals
from trimtab.core.block import Block, Event, Record
from trimtab.core.events import UNDO
from trimtab.journal.run_totals import RunTotals


def record(step: int, *, tick: int | None = None, is_discarded: bool = False) -> Record:
    found = {signals.LOSS: 2.0, signals.DISCARDED: float(is_discarded)}
    return Record(step=step, tick=step if tick is None else tick, signals=found)


def undo(step: int, lost: object) -> Event:
    return Event(kind=UNDO, tick=step, step=step, facts={"updates_lost": lost})


def test_a_step_that_was_discarded_and_then_undone_is_lost_once() -> None:
    totals = RunTotals()
    totals.add(Block.from_records([record(s, is_discarded=s in (8, 9)) for s in range(10)], []))
    assert totals.num_lost == totals.num_discarded == 2
    totals.add(Block.from_records([record(10)], [undo(10, 4)]))
    assert totals.num_lost == 4  # 6 to 9, of which 8 and 9 are counted already


def test_after_a_relaunch_the_same_numbers_are_other_steps() -> None:
    totals = RunTotals()
    totals.add(Block.from_records([record(s, is_discarded=s == 3) for s in range(5)], []))
    assert totals.add(Block.from_records([record(3, tick=5, is_discarded=True)], []))
    assert totals.num_lost == 2


def test_what_a_damaged_file_says_of_an_undo_is_not_believed() -> None:
    totals = RunTotals()
    totals.add(Block.from_records([record(1)], [undo(1, 10**12), undo(1, "all"), undo(1, -3)]))
    assert totals.num_lost == 0
