"""What is known to have happened, in front of which record."""

import numpy as np
from tests.detect.feeding import block

from trimtab.core.block import Block, Event
from trimtab.detect.known_events import SETTLED, Calendar, Known
from trimtab.detect.tools.rows import rows_of


def known(run: Block) -> list[tuple[int, Known]]:
    whole, single = Calendar(), Calendar()
    for calendar in (whole, single):
        calendar.announce(run.events)
    found = whole.sweep(run)
    taken = [single.take(row) for row in rows_of(run)]
    assert [(row, what) for row, what in enumerate(taken) if what] == found
    assert single.state_dict() == whole.state_dict()
    return found


def event(kind: str, tick: int, step: int) -> Event:
    return Event(kind=kind, tick=tick, step=step)


def test_an_event_waits_for_its_record_and_for_its_step() -> None:
    late = event("evaluation", 8, 10)  # a live run writes its records two steps late
    events = [late, event("resume", 20, 20), event("note", 3, 3), event("resume", 90, 90)]
    assert known(block(50, loss=1.0, events=events)) == [(10, Known.PAUSED), (20, Known.RESUMED)]


def test_a_new_attempt_went_back() -> None:
    attempt = np.asarray(np.arange(50) >= 30, dtype=np.int64)
    assert known(block(50, loss=1.0, attempt=attempt)) == [(30, Known.WENT_BACK)]


def test_another_batch_size_is_a_change_where_it_was_the_same_for_long() -> None:
    tokens = np.full(100, 512.0)
    tokens[SETTLED:] = 1024.0
    assert known(block(100, tokens=tokens)) == [(SETTLED, Known.CHANGED)]
    tokens[SETTLED - 1 :] = 1024.0
    assert known(block(100, tokens=tokens)) == []


def test_batches_that_all_differ_are_no_changes() -> None:
    assert known(block(300, tokens=np.random.default_rng(0).integers(100, 200, 300))) == []


def test_several_things_at_once_are_told_together() -> None:
    events = [event("resume", 5, 5), event("planned change", 5, 5)]
    assert known(block(10, loss=1.0, events=events)) == [(5, Known.RESUMED | Known.CHANGED)]
